"""The journal's files: manifest, segments, their verification and snapshots. Shared by the broker and the pipeline."""
