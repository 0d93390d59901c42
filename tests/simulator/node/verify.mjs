// Checks the simulator's CARs with the reference implementation.
//
// In (standard input): JSON, a list of accounts {did, key, first, commits, whole}: `first` and `whole` are CARs of the
// whole repository before and after, `commits` the commits in between as {car, claims}. CARs are base64; claims are
// {collection, rkey, cid} with a CID as text, null for "holds nothing".
// Out: JSON, for each account {records, commits}: the records of `whole` by path, and for each commit which claims were
// proven and which writes the reference found by comparing it with the repository before.

import { text } from 'node:stream/consumers'

import repository from '@atproto/repo' // CommonJS: no named exports

const { MemoryBlockstore, Repo, verifyDiffCar, verifyProofs, verifyRepoCar } = repository

const bytes = (base64) => new Uint8Array(Buffer.from(base64, 'base64'))

async function recordsOf(car, did, key) {
  const { creates } = await verifyRepoCar(bytes(car), did, key)
  return Object.fromEntries(creates.map((write) => [`${write.collection}/${write.rkey}`, write.cid.toString()]))
}

async function checkCommit(repo, storage, { car, claims }, did, key) {
  const wanted = claims.map((claim) => ({ ...claim, cid: claim.cid && storage.parse(claim.cid) }))
  const { verified } = await verifyProofs(bytes(car), wanted, did, key)
  const { writes, commit } = await verifyDiffCar(repo, bytes(car), did, key)
  await storage.applyCommit(commit)
  return {
    next: await Repo.load(storage, commit.cid),
    result: {
      proven: verified.length,
      writes: writes.map((write) => ({
        action: write.action,
        path: `${write.collection}/${write.rkey}`,
        cid: write.action === 'delete' ? null : write.cid.toString(),
      })),
    },
  }
}

async function checkAccount({ did, key, first, commits, whole }) {
  const storage = new MemoryBlockstore()
  const start = await verifyRepoCar(bytes(first), did, key)
  storage.parse = (cid) => start.commit.cid.constructor.parse(cid)
  await storage.applyCommit(start.commit)
  let repo = await Repo.load(storage, start.commit.cid)
  const results = []
  for (const commit of commits) {
    const { next, result } = await checkCommit(repo, storage, commit, did, key)
    repo = next
    results.push(result)
  }
  return { records: await recordsOf(whole, did, key), commits: results }
}

const accounts = JSON.parse(await text(process.stdin))
const answers = []
for (const account of accounts) answers.push(await checkAccount(account))
console.log(JSON.stringify(answers))
