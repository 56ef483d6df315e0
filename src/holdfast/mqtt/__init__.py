"""The MQTT front. What lives here so far is pure: the rules of the standards, the codec, and topics."""
