"""What a power cut leaves: real processes on real files, of which all is forgotten that was not synced."""
