"""Who gets what becomes ready: long polls, push members, replies."""
