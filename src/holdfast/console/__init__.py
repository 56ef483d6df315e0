"""The console: pages for people, at `/` of the HTTP server.

    app.py        joins the pages to the HTTP server's table of endpoints, and says who may see them
    caller.py     the person who asks for a page, and what a page can do for it: call the API, render, redirect
    sessions.py   who is signed in
    pages/        one file for each noun: what its pages show and do
    samples.py    rates and depths of the last seven days, for plots; sampler.py takes them
    live.py       updates of open pages, as server-sent events
    templates/    the pages' HTML (Jinja); static/ styles and scripts, which are served as they are

Pages call the API as a client does (`Caller.api`), so that rights, limits and the audit log are the API's. What the API
has no call for they ask the node's parts.
"""

from holdfast.console.app import Console as Console
