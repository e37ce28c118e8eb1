// The same program runs with all versions of the driver. This file contains the code that differs
// between the versions.
//
// package.json pins the newest version, VERSION/package.json an old one. The test copies both
// folders into one.

import { createRequire } from 'node:module';

import mongodb from 'mongodb';

const require = createRequire(import.meta.url);
export const MAJOR = Number(require('mongodb/package.json').version.split('.')[0]);

export const {
  BSONRegExp, Binary, Code, DBRef, Decimal128, Double, GridFSBucket, Int32, Long, MaxKey, MinKey, MongoClient, MongoError,
  ObjectId,
} = mongodb;

// Version 3 has no extended JSON. The `bson` package provides it and accepts the types of version
// 3.
export const BSON = mongodb.BSON ?? require('bson');
export const { EJSON } = BSON;
export const BSONSymbol = mongodb.BSONSymbol ?? mongodb.Symbol;

// The steps that an old version skips, with the reason.
export const SKIPPED_STEPS = {
  3: {
    'find let': 'find has no `let`',
    'session snapshot': 'no snapshot sessions',
  },
  4: {
    'session snapshot': 'the driver refuses snapshot sessions with loadBalanced=true, because it assumes an older server',
  },
}[MAJOR] ?? {};

// Version 3 ignores the Stable API unless it uses its newer way to monitor the deployment, which is
// not its default.
export const STABLE_API = {
  serverApi: { version: '1', strict: true },
  ...(MAJOR === 3 ? { useUnifiedTopology: true } : {}),
};

export function uuid(text) {
  return mongodb.UUID ? new mongodb.UUID(text) : new Binary(Buffer.from(text.replaceAll('-', ''), 'hex'), 4);
}

export function timestamp(t, i) {
  return MAJOR > 3 ? new mongodb.Timestamp({ t, i }) : new mongodb.Timestamp(i, t);
}

// A write's result without the connection and the raw reply, which version 3 adds to it.
export function plain(value) {
  if (MAJOR > 3 || !value?.connection) return value;
  const { connection, message, ...result } = value;
  return result;
}

// The server's reply to a command that failed. Old versions copy its fields to the error.
export function replyOf(error) {
  if (MAJOR > 4) return error.errorResponse ?? null;
  const copied = ['ok', 'code', 'codeName', 'keyPattern', 'keyValue', 'errInfo', 'index', 'operationTime', '$clusterTime'];
  return Object.fromEntries(copied.filter((name) => name in error).map((name) => [name, error[name]]));
}

// In old versions the driver's `withSession` returns no value.
export async function withSession(client, options, action) {
  const session = client.startSession(options);
  try {
    return await action(session);
  } finally {
    await session.endSession();
  }
}

// Version 3 and the `bson` package use different names for the two halves of a timestamp.
if (MAJOR === 3) {
  mongodb.Timestamp.prototype.toExtendedJSON = function toExtendedJSON() {
    return { $timestamp: { t: this.high_ >>> 0, i: this.low_ >>> 0 } };
  };
}
