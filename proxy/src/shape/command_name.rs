//! The known commands, and how a fingerprint treats each of them.

use super::bson::{Field, head_of};
use super::clause::{self, Table};
use super::form::Word;

/// The canonical name of a command. Aliases and old spellings are resolved. Unknown names give
/// `None`.
///
/// A command's name may become a label only in this form.
pub fn canonical_name(name: &[u8]) -> Option<&'static str> {
    find_by(name, head_of(name)).map(|command| command.name.text)
}

/// A known command.
#[derive(Debug)]
pub(super) struct KnownCommand {
    /// The name that clients send.
    wire_name: &'static str,
    /// The canonical name, under which the command is counted.
    pub(super) name: Word,
    pub(super) kind: CommandKind,
}

/// How the rules treat a command.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum CommandKind {
    Find,
    Aggregate,
    Count,
    Distinct,
    MapReduce,
    Update,
    Delete,
    FindAndModify,
    CreateIndexes,
    GetMore,
    BulkWrite,
    Explain,
    /// A command with a collection. Its shape is empty.
    OnCollection,
    /// A command without a collection. Its shape is empty.
    Plain,
}

impl CommandKind {
    /// The clauses of the command's own fields.
    pub(super) fn table(self) -> &'static Table {
        match self {
            Self::Find => &clause::FIND,
            Self::Aggregate => &clause::AGGREGATE,
            Self::Count => &clause::COUNT,
            Self::Distinct => &clause::DISTINCT,
            Self::MapReduce => &clause::MAP_REDUCE,
            Self::Update => &clause::UPDATE,
            Self::Delete => &clause::DELETE,
            Self::FindAndModify => &clause::FIND_AND_MODIFY,
            Self::CreateIndexes => &clause::CREATE_INDEXES,
            Self::GetMore | Self::BulkWrite | Self::Explain | Self::OnCollection | Self::Plain => {
                &clause::NONE
            }
        }
    }
}

/// The entry for every unknown name.
pub(super) static UNKNOWN: KnownCommand = known("<unknown>", CommandKind::Plain);

/// The known command that a first field names.
#[inline]
pub(super) fn find(first: &Field<'_>) -> Option<&'static KnownCommand> {
    find_by(first.name, first.head)
}

#[inline]
fn find_by(name: &[u8], head: u64) -> Option<&'static KnownCommand> {
    let mut slot = first_slot(head);
    loop {
        // An empty slot contains an index past the end of the table.
        let command = COMMANDS.get(usize::from(*SLOTS.get(slot)?))?;
        if command.wire_name.as_bytes() == name {
            return Some(command);
        }
        slot = (slot + 1) % SLOT_COUNT;
    }
}

/// The slot where the search for a name with that head begins. Names with the same head share their
/// first slot.
#[expect(
    clippy::as_conversions,
    reason = "const code cannot call try_from; the result is small"
)]
const fn first_slot(head: u64) -> usize {
    // Fibonacci hashing: the multiplier is 2^64 divided by the golden ratio, and the high bits are
    // mixed best.
    (head.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS)) as usize
}

/// An open-addressing hash table of indexes into [`COMMANDS`], made at compile time.
static SLOTS: [u8; SLOT_COUNT] = make_slots();

#[expect(
    clippy::as_conversions,
    reason = "const code cannot call try_from; the table is that small"
)]
#[expect(
    clippy::indexing_slicing,
    reason = "const code cannot call get; a mistake fails the build"
)]
const fn make_slots() -> [u8; SLOT_COUNT] {
    let mut slots = [EMPTY; SLOT_COUNT];
    let mut index = 0;
    while index < COMMANDS.len() {
        let mut slot = first_slot(head_of(COMMANDS[index].wire_name.as_bytes()));
        while slots[slot] != EMPTY {
            slot = (slot + 1) % SLOT_COUNT;
        }
        slots[slot] = index as u8;
        index += 1;
    }
    slots
}

/// Large enough that the first slot is right for most names.
const SLOT_COUNT: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 9;
const EMPTY: u8 = u8::MAX;

const _: () = assert!(
    COMMANDS.len() < 255,
    "every index of a command fits a slot and differs from EMPTY"
);

const fn known(name: &'static str, kind: CommandKind) -> KnownCommand {
    alias(name, name, kind)
}

const fn alias(wire_name: &'static str, name: &'static str, kind: CommandKind) -> KnownCommand {
    KnownCommand {
        wire_name,
        name: Word::new(name),
        kind,
    }
}

static COMMANDS: [KnownCommand; 136] = [
    known("find", CommandKind::Find),
    known("aggregate", CommandKind::Aggregate),
    known("count", CommandKind::Count),
    known("distinct", CommandKind::Distinct),
    known("insert", CommandKind::OnCollection),
    known("update", CommandKind::Update),
    known("delete", CommandKind::Delete),
    known("findAndModify", CommandKind::FindAndModify),
    known("mapReduce", CommandKind::MapReduce),
    known("getMore", CommandKind::GetMore),
    known("killCursors", CommandKind::OnCollection),
    known("createIndexes", CommandKind::CreateIndexes),
    known("dropIndexes", CommandKind::OnCollection),
    known("listIndexes", CommandKind::OnCollection),
    known("create", CommandKind::OnCollection),
    known("drop", CommandKind::OnCollection),
    known("collStats", CommandKind::OnCollection),
    known("collMod", CommandKind::OnCollection),
    known("validate", CommandKind::OnCollection),
    known("compact", CommandKind::OnCollection),
    known("reIndex", CommandKind::OnCollection),
    known("convertToCapped", CommandKind::OnCollection),
    known("createSearchIndexes", CommandKind::OnCollection),
    known("updateSearchIndex", CommandKind::OnCollection),
    known("dropSearchIndex", CommandKind::OnCollection),
    known("planCacheClear", CommandKind::OnCollection),
    known("planCacheClearFilters", CommandKind::OnCollection),
    known("planCacheListFilters", CommandKind::OnCollection),
    known("planCacheSetFilter", CommandKind::OnCollection),
    known("dataSize", CommandKind::OnCollection),
    known("ping", CommandKind::Plain),
    known("hello", CommandKind::Plain),
    known("isMaster", CommandKind::Plain),
    known("buildInfo", CommandKind::Plain),
    known("saslStart", CommandKind::Plain),
    known("saslContinue", CommandKind::Plain),
    known("authenticate", CommandKind::Plain),
    known("logout", CommandKind::Plain),
    known("getnonce", CommandKind::Plain),
    known("endSessions", CommandKind::Plain),
    known("startSession", CommandKind::Plain),
    known("refreshSessions", CommandKind::Plain),
    known("killSessions", CommandKind::Plain),
    known("killAllSessions", CommandKind::Plain),
    known("killAllSessionsByPattern", CommandKind::Plain),
    known("killOp", CommandKind::Plain),
    known("currentOp", CommandKind::Plain),
    known("commitTransaction", CommandKind::Plain),
    known("abortTransaction", CommandKind::Plain),
    known("listCollections", CommandKind::Plain),
    known("listDatabases", CommandKind::Plain),
    known("listCommands", CommandKind::Plain),
    known("dbStats", CommandKind::Plain),
    known("serverStatus", CommandKind::Plain),
    known("top", CommandKind::Plain),
    known("hostInfo", CommandKind::Plain),
    known("getParameter", CommandKind::Plain),
    known("setParameter", CommandKind::Plain),
    known("getLog", CommandKind::Plain),
    known("getCmdLineOpts", CommandKind::Plain),
    known("connectionStatus", CommandKind::Plain),
    known("connPoolStats", CommandKind::Plain),
    known("replSetGetStatus", CommandKind::Plain),
    known("replSetGetConfig", CommandKind::Plain),
    known("replSetFreeze", CommandKind::Plain),
    known("replSetStepDown", CommandKind::Plain),
    known("replSetReconfig", CommandKind::Plain),
    known("replSetInitiate", CommandKind::Plain),
    known("renameCollection", CommandKind::Plain),
    known("dropDatabase", CommandKind::Plain),
    known("createUser", CommandKind::Plain),
    known("updateUser", CommandKind::Plain),
    known("dropUser", CommandKind::Plain),
    known("dropAllUsersFromDatabase", CommandKind::Plain),
    known("usersInfo", CommandKind::Plain),
    known("grantRolesToUser", CommandKind::Plain),
    known("revokeRolesFromUser", CommandKind::Plain),
    known("createRole", CommandKind::Plain),
    known("updateRole", CommandKind::Plain),
    known("dropRole", CommandKind::Plain),
    known("rolesInfo", CommandKind::Plain),
    known("profile", CommandKind::Plain),
    known("fsync", CommandKind::Plain),
    known("fsyncUnlock", CommandKind::Plain),
    known("shutdown", CommandKind::Plain),
    known("getLastError", CommandKind::Plain),
    known("whatsmyuri", CommandKind::Plain),
    known("features", CommandKind::Plain),
    known("lockInfo", CommandKind::Plain),
    known("dbHash", CommandKind::Plain),
    known("explain", CommandKind::Explain),
    known("bulkWrite", CommandKind::BulkWrite),
    known("shardCollection", CommandKind::Plain),
    known("enableSharding", CommandKind::Plain),
    known("split", CommandKind::Plain),
    known("moveChunk", CommandKind::Plain),
    known("moveRange", CommandKind::Plain),
    known("refineCollectionShardKey", CommandKind::Plain),
    known("addShard", CommandKind::Plain),
    known("removeShard", CommandKind::Plain),
    known("listShards", CommandKind::Plain),
    known("balancerStart", CommandKind::Plain),
    known("balancerStop", CommandKind::Plain),
    known("balancerStatus", CommandKind::Plain),
    known("getShardMap", CommandKind::Plain),
    known("isdbgrid", CommandKind::Plain),
    known("setFeatureCompatibilityVersion", CommandKind::Plain),
    known("getDefaultRWConcern", CommandKind::Plain),
    known("setDefaultRWConcern", CommandKind::Plain),
    known("rotateCertificates", CommandKind::Plain),
    known("setQuerySettings", CommandKind::Plain),
    known("removeQuerySettings", CommandKind::Plain),
    known("analyzeShardKey", CommandKind::Plain),
    known("configureQueryAnalyzer", CommandKind::Plain),
    known("abortReshardCollection", CommandKind::Plain),
    known("reshardCollection", CommandKind::Plain),
    known("commitReshardCollection", CommandKind::Plain),
    known("unshardCollection", CommandKind::Plain),
    known("moveCollection", CommandKind::Plain),
    known("cloneCollectionAsCapped", CommandKind::Plain),
    known("logRotate", CommandKind::Plain),
    known("netstat", CommandKind::Plain),
    known("filemd5", CommandKind::Plain),
    known("driverOIDTest", CommandKind::Plain),
    known("eval", CommandKind::Plain),
    known("group", CommandKind::Plain),
    known("geoNear", CommandKind::Plain),
    known("geoSearch", CommandKind::Plain),
    alias("findandmodify", "findAndModify", CommandKind::FindAndModify),
    alias("mapreduce", "mapReduce", CommandKind::MapReduce),
    alias("ismaster", "isMaster", CommandKind::Plain),
    alias("dbstats", "dbStats", CommandKind::Plain),
    alias("collstats", "collStats", CommandKind::OnCollection),
    alias("buildinfo", "buildInfo", CommandKind::Plain),
    alias("getlasterror", "getLastError", CommandKind::Plain),
    alias("deleteIndexes", "dropIndexes", CommandKind::OnCollection),
];
