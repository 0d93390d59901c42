"""Permissioned spaces (AT Protocol proposal 0016): the records that no firehose carries, read with an app password.

failures    what can go wrong, as the caller needs to know it
dialect     what one form of the protocol is made of; dialects/ has one file for each form
commit      the signed commit: reading and judging it
operations  one answer of listRepoOps, from JSON to checked values
folding     from the operations of a poll to changes and history
repo        a repository's state, and the poll that leads from one to the next
load        a repository's CAR, verified whole
session     login, renewal, and calls with the token
client      the calls, in the dialect that the host answers
reader      one repository brought up to its host's head: poll, or load where a poll doesn't fit
pace        how often to ask
"""
