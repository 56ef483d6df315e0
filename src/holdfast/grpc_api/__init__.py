"""The gRPC front: the services of `proto/holdfast/v1/queue.proto`, health and reflection. It is imported only where it
is configured (`grpc.listen`)."""

from holdfast.grpc_api.front import GrpcFront as GrpcFront
