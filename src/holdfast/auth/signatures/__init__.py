"""AWS Signature Version 4: a request that is signed with the secret of an access key.

    head.py     what the head of a request says about its signature: who signed, when, and what
    whole.py    the signature of a request that is here whole, checked

The signature covers the method, the path, the query, the headers that it names and the body, so that the secret is
never sent. It can be checked only when the body is here; who signed, and when, is known from the head.
"""

from holdfast.auth.signatures.head import SCHEME as SCHEME
from holdfast.auth.signatures.head import Signature as Signature
from holdfast.auth.signatures.head import check_time as check_time
from holdfast.auth.signatures.head import read as read
from holdfast.auth.signatures.head import refused as refused
from holdfast.auth.signatures.whole import SignedRequest as SignedRequest
from holdfast.auth.signatures.whole import check as check
