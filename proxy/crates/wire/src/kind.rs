//! The type bytes of elements: the BSON types of their values.
//!
//! Source: <https://bsonspec.org/spec.html>.

#![allow(missing_docs, reason = "each constant has the name of its BSON type")]

pub const DOUBLE: u8 = 0x01;
pub const STRING: u8 = 0x02;
pub const DOCUMENT: u8 = 0x03;
pub const ARRAY: u8 = 0x04;
pub const BINARY: u8 = 0x05;
pub const UNDEFINED: u8 = 0x06;
pub const OBJECT_ID: u8 = 0x07;
pub const BOOL: u8 = 0x08;
pub const DATE: u8 = 0x09;
pub const NULL: u8 = 0x0a;
pub const REGEX: u8 = 0x0b;
pub const DB_POINTER: u8 = 0x0c;
pub const CODE: u8 = 0x0d;
pub const SYMBOL: u8 = 0x0e;
pub const CODE_WITH_SCOPE: u8 = 0x0f;
pub const INT32: u8 = 0x10;
pub const TIMESTAMP: u8 = 0x11;
pub const INT64: u8 = 0x12;
pub const DECIMAL: u8 = 0x13;
pub const MAX_KEY: u8 = 0x7f;
pub const MIN_KEY: u8 = 0xff;
