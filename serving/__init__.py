"""Serving: the feed pipeline and its store, online features, publishing, the HTTP API and the page.

`serving.feed` runs a feed over any store; `serving.snapshot` makes an in-memory one as of a moment;
`serving.publish` puts one into Redis; `serving.api` answers over HTTP.
"""
