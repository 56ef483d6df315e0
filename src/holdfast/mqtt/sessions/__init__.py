"""The plain MQTT broker, pure: connections, sessions, subscriptions, retained messages."""
