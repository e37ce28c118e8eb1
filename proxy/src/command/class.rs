//! Classes of commands: how a command is served depends on its name.

/// Commands for the connection or the login. They never reach a pooled connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// `hello`.
    Hello,
    /// `isMaster` or `ismaster`.
    LegacyHello,
    /// `saslStart`.
    SaslStart,
    /// `saslContinue`.
    SaslContinue,
    /// `authenticate` (X.509).
    Authenticate,
    /// `logout`.
    Logout,
    /// `getnonce`.
    Getnonce,
    /// `whatsmyuri`.
    WhatsMyUri,
}

/// How a command is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Answered by Seawall itself.
    Handshake(Handshake),
    /// A read that may be repeated: it changes nothing.
    Read,
    /// `aggregate`: a read unless its last stage writes.
    Aggregate,
    /// Changes data or structure: only the primary serves it.
    Write,
    /// `commitTransaction`, `abortTransaction`.
    EndTransaction,
    /// `getMore`: goes to the server that holds the cursor.
    GetMore,
    /// `killCursors`: also goes to the servers that hold the cursors.
    KillCursors,
    /// Every other command, known or unknown: forwarded.
    Other,
}

impl Class {
    /// The class of a command, by its name as sent. Servers distinguish upper and lower case.
    pub fn of(name: &[u8]) -> Self {
        use Handshake as H;
        match name {
            b"find" | b"count" | b"distinct" | b"listCollections" | b"listIndexes"
            | b"listDatabases" | b"dbStats" | b"dbstats" | b"collStats" | b"collstats"
            | b"ping" | b"buildInfo" | b"buildinfo" | b"connectionStatus" => Self::Read,
            b"aggregate" => Self::Aggregate,
            b"insert"
            | b"update"
            | b"delete"
            | b"findAndModify"
            | b"findandmodify"
            | b"bulkWrite"
            | b"create"
            | b"createIndexes"
            | b"drop"
            | b"dropDatabase"
            | b"dropIndexes"
            | b"deleteIndexes"
            | b"collMod"
            | b"renameCollection"
            | b"convertToCapped"
            | b"cloneCollectionAsCapped"
            | b"createUser"
            | b"updateUser"
            | b"dropUser"
            | b"createRole"
            | b"updateRole"
            | b"dropRole"
            | b"grantRolesToUser"
            | b"revokeRolesFromUser" => Self::Write,
            b"getMore" => Self::GetMore,
            b"killCursors" => Self::KillCursors,
            b"commitTransaction" | b"abortTransaction" => Self::EndTransaction,
            b"hello" => Self::Handshake(H::Hello),
            b"isMaster" | b"ismaster" => Self::Handshake(H::LegacyHello),
            b"saslStart" => Self::Handshake(H::SaslStart),
            b"saslContinue" => Self::Handshake(H::SaslContinue),
            b"authenticate" => Self::Handshake(H::Authenticate),
            b"logout" => Self::Handshake(H::Logout),
            b"getnonce" => Self::Handshake(H::Getnonce),
            b"whatsmyuri" => Self::Handshake(H::WhatsMyUri),
            _ => Self::Other,
        }
    }
}
