"""boto3 as a client of a server in this process: its calls block, so they run on threads."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.loaders import Loader
from botocore.session import Session

QUERY_MODEL = Path(__file__).parent / "query_model"
PROTOCOLS = ["json", "query"]
ACCOUNT = "000000000000"

Fields = dict[str, Any]


class Sqs:
    """A boto3 client. `await sqs("SendMessage", QueueUrl=…)` is what the action gives."""

    def __init__(self, url: str, protocol: str = "json", key: str = "key", secret: str = "secret") -> None:
        session = Session()
        if protocol == "query":
            session.register_component("data_loader", Loader(extra_search_paths=[str(QUERY_MODEL)]))
        self.protocol = protocol
        self.client = boto3.Session(botocore_session=session).client(
            "sqs",
            endpoint_url=f"{url}/sqs",
            region_name="eu-central-1",
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            config=Config(retries={"max_attempts": 0}, parameter_validation=False),
        )
        assert self.client.meta.service_model.metadata["protocol"] == protocol

    async def __call__(self, action: str, **fields: object) -> Fields:
        method = next(method for method, name in self.client.meta.method_to_api_mapping.items() if name == action)
        found: Fields = await asyncio.to_thread(getattr(self.client, method), **fields)
        assert found.pop("ResponseMetadata")["HTTPStatusCode"] == 200
        return found

    async def refused(self, action: str, **fields: object) -> str:
        """The name of the error, as the client knows it."""
        with pytest.raises(ClientError) as caught:
            await self(action, **fields)
        error = caught.value.response["Error"]
        assert error["Message"]
        return str(error["Code"])

    async def create(self, name: str, **attributes: object) -> str:
        """The URL of a new queue."""
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in attributes.items()}
        return str((await self("CreateQueue", QueueName=name, Attributes=texts))["QueueUrl"])

    async def send(self, url: str, body: str, **fields: object) -> Fields:
        return await self("SendMessage", QueueUrl=url, MessageBody=body, **fields)

    async def receive(self, url: str, **fields: object) -> list[Fields]:
        found = await self("ReceiveMessage", QueueUrl=url, **{"MaxNumberOfMessages": 10, **fields})
        return list(found.get("Messages", []))

    async def one(self, url: str, **fields: object) -> Fields:
        [message] = await self.receive(url, **fields)
        return message

    async def attributes(self, url: str, *names: str) -> dict[str, str]:
        found = await self("GetQueueAttributes", QueueUrl=url, AttributeNames=list(names or ("All",)))
        return dict(found.get("Attributes", {}))

    def close(self) -> None:
        self.client.close()


def arn(name: str) -> str:
    return f"arn:aws:sqs:eu-central-1:{ACCOUNT}:{name}"
