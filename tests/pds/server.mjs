// The reference PDS and its PLC directory on loopback, for tests: node server.mjs MODULES
//
// MODULES is the folder that holds node_modules. Once both servers listen, prints one line of JSON on standard
// output: {"pds": URL, "plc": URL, "adminPassword": string, "data": folder}. Ends, and removes its data, when
// standard input closes: whoever started it need not live to clean up.
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import net from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const require = createRequire(join(process.argv[2], 'package.json'))
const { PDS, envToCfg, envToSecrets } = require('@atproto/pds')
const { Database, PlcServer } = require('@did-plc/server')

const data = mkdtempSync(join(tmpdir(), 'test-pds-'))
process.on('exit', () => rmSync(data, { recursive: true, force: true }))
process.stdin.on('end', () => process.exit(0)).resume()

// A listening socket on loopback. It is handed to a server as it is: the port is known before the server is built,
// and nobody can take it in between.
async function reserve() {
  const socket = net.createServer().listen(0, '127.0.0.1')
  await once(socket, 'listening')
  return { socket, url: `http://localhost:${socket.address().port}` }
}

async function startOn(socket, server) {
  const listen = server.app.listen.bind(server.app)
  server.app.listen = () => listen(socket)
  await server.start()
}

function configuration(port, plcUrl, adminPassword) {
  return {
    port,
    adminPassword,
    devMode: true,
    dataDirectory: data,
    blobstoreDiskLocation: join(data, 'blobs'),
    didPlcUrl: plcUrl,
    plcRotationKeyK256PrivateKeyHex: randomBytes(32).toString('hex'),
    jwtSecret: randomBytes(16).toString('hex'),
    serviceHandleDomains: ['.test'],
    inviteRequired: false,
    disableSsrfProtection: true,
  }
}

const plc = await reserve()
await startOn(plc.socket, PlcServer.create({ db: Database.mock() }))

const pds = await reserve()
const adminPassword = randomBytes(16).toString('hex')
const settings = configuration(pds.socket.address().port, plc.url, adminPassword)
await startOn(pds.socket, await PDS.create(envToCfg(settings), envToSecrets(settings)))

console.log(JSON.stringify({ pds: pds.url, plc: plc.url, adminPassword, data }))
