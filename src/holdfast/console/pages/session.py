"""Signing out, and help. (Signing in is the application's, since nobody is known yet.)"""

from __future__ import annotations

from holdfast.console.caller import Caller
from holdfast.console.page import Pages
from holdfast.http_api.server.response import Response

PAGES = Pages()


@PAGES.post("/logout")
async def sign_out(caller: Caller) -> Response:
    return caller.console.sign_out(caller.request)


@PAGES.get("/help")
async def show_help(caller: Caller) -> Response:
    return caller.page("help.html")
