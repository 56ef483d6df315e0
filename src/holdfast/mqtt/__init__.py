"""The MQTT front. What lives here so far is pure: rules of the standards, codec, topics, and the broker (`hub`)."""
