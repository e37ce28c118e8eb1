//! The commands that are known by name, and what each is to a fingerprint.

use super::bson::{Field, head_of};
use super::clause::{self, Table};
use super::form::Word;

/// The canonical name of a command: aliases and old spellings are resolved, names that are no
/// command give `None`.
///
/// The answer is the only form in which a command's name may become a label.
pub fn canonical_name(name: &[u8]) -> Option<&'static str> {
    find_by(name, head_of(name)).map(|command| command.name.text)
}

/// A known command.
#[derive(Debug)]
pub(super) struct KnownCommand {
    /// As clients write it.
    wire_name: &'static str,
    /// As it is counted.
    pub(super) name: Word,
    pub(super) kind: Kind,
}

/// What the rules do with a command.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Kind {
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
    /// Takes a collection, has no shape.
    OnCollection,
    /// Has neither.
    Plain,
}

impl Kind {
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

/// What stands for every name that is no command.
pub(super) static UNKNOWN: KnownCommand = known("<unknown>", Kind::Plain);

/// The known command that a first field names.
#[inline]
pub(super) fn find(first: &Field<'_>) -> Option<&'static KnownCommand> {
    find_by(first.name, first.head)
}

#[inline]
fn find_by(name: &[u8], head: u64) -> Option<&'static KnownCommand> {
    let mut slot = first_slot(head);
    loop {
        // An empty slot holds a number past the end of the table.
        let command = COMMANDS.get(usize::from(*SLOTS.get(slot)?))?;
        if command.wire_name.as_bytes() == name {
            return Some(command);
        }
        slot = (slot + 1) % SLOT_COUNT;
    }
}

/// Where the search for a name with that head begins. Names with one head stand one after the
/// other.
#[expect(
    clippy::as_conversions,
    reason = "const code cannot call try_from; the result is small"
)]
const fn first_slot(head: u64) -> usize {
    // Fibonacci hashing: the multiplier is 2^64 over the golden ratio, and the high bits are the
    // good ones.
    (head.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS)) as usize
}

/// An open-addressed hash table of numbers of [`COMMANDS`], made at compile time.
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
    let mut number = 0;
    while number < COMMANDS.len() {
        let mut slot = first_slot(head_of(COMMANDS[number].wire_name.as_bytes()));
        while slots[slot] != EMPTY {
            slot = (slot + 1) % SLOT_COUNT;
        }
        slots[slot] = number as u8;
        number += 1;
    }
    slots
}

/// Room enough that most names are found at the first look.
const SLOT_COUNT: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 9;
const EMPTY: u8 = u8::MAX;

const _: () = assert!(
    COMMANDS.len() < 255,
    "the number of a command fits a slot and is not EMPTY"
);

const fn known(name: &'static str, kind: Kind) -> KnownCommand {
    alias(name, name, kind)
}

const fn alias(wire_name: &'static str, name: &'static str, kind: Kind) -> KnownCommand {
    KnownCommand {
        wire_name,
        name: Word::new(name),
        kind,
    }
}

static COMMANDS: [KnownCommand; 136] = [
    known("find", Kind::Find),
    known("aggregate", Kind::Aggregate),
    known("count", Kind::Count),
    known("distinct", Kind::Distinct),
    known("insert", Kind::OnCollection),
    known("update", Kind::Update),
    known("delete", Kind::Delete),
    known("findAndModify", Kind::FindAndModify),
    known("mapReduce", Kind::MapReduce),
    known("getMore", Kind::GetMore),
    known("killCursors", Kind::OnCollection),
    known("createIndexes", Kind::CreateIndexes),
    known("dropIndexes", Kind::OnCollection),
    known("listIndexes", Kind::OnCollection),
    known("create", Kind::OnCollection),
    known("drop", Kind::OnCollection),
    known("collStats", Kind::OnCollection),
    known("collMod", Kind::OnCollection),
    known("validate", Kind::OnCollection),
    known("compact", Kind::OnCollection),
    known("reIndex", Kind::OnCollection),
    known("convertToCapped", Kind::OnCollection),
    known("createSearchIndexes", Kind::OnCollection),
    known("updateSearchIndex", Kind::OnCollection),
    known("dropSearchIndex", Kind::OnCollection),
    known("planCacheClear", Kind::OnCollection),
    known("planCacheClearFilters", Kind::OnCollection),
    known("planCacheListFilters", Kind::OnCollection),
    known("planCacheSetFilter", Kind::OnCollection),
    known("dataSize", Kind::OnCollection),
    known("ping", Kind::Plain),
    known("hello", Kind::Plain),
    known("isMaster", Kind::Plain),
    known("buildInfo", Kind::Plain),
    known("saslStart", Kind::Plain),
    known("saslContinue", Kind::Plain),
    known("authenticate", Kind::Plain),
    known("logout", Kind::Plain),
    known("getnonce", Kind::Plain),
    known("endSessions", Kind::Plain),
    known("startSession", Kind::Plain),
    known("refreshSessions", Kind::Plain),
    known("killSessions", Kind::Plain),
    known("killAllSessions", Kind::Plain),
    known("killAllSessionsByPattern", Kind::Plain),
    known("killOp", Kind::Plain),
    known("currentOp", Kind::Plain),
    known("commitTransaction", Kind::Plain),
    known("abortTransaction", Kind::Plain),
    known("listCollections", Kind::Plain),
    known("listDatabases", Kind::Plain),
    known("listCommands", Kind::Plain),
    known("dbStats", Kind::Plain),
    known("serverStatus", Kind::Plain),
    known("top", Kind::Plain),
    known("hostInfo", Kind::Plain),
    known("getParameter", Kind::Plain),
    known("setParameter", Kind::Plain),
    known("getLog", Kind::Plain),
    known("getCmdLineOpts", Kind::Plain),
    known("connectionStatus", Kind::Plain),
    known("connPoolStats", Kind::Plain),
    known("replSetGetStatus", Kind::Plain),
    known("replSetGetConfig", Kind::Plain),
    known("replSetFreeze", Kind::Plain),
    known("replSetStepDown", Kind::Plain),
    known("replSetReconfig", Kind::Plain),
    known("replSetInitiate", Kind::Plain),
    known("renameCollection", Kind::Plain),
    known("dropDatabase", Kind::Plain),
    known("createUser", Kind::Plain),
    known("updateUser", Kind::Plain),
    known("dropUser", Kind::Plain),
    known("dropAllUsersFromDatabase", Kind::Plain),
    known("usersInfo", Kind::Plain),
    known("grantRolesToUser", Kind::Plain),
    known("revokeRolesFromUser", Kind::Plain),
    known("createRole", Kind::Plain),
    known("updateRole", Kind::Plain),
    known("dropRole", Kind::Plain),
    known("rolesInfo", Kind::Plain),
    known("profile", Kind::Plain),
    known("fsync", Kind::Plain),
    known("fsyncUnlock", Kind::Plain),
    known("shutdown", Kind::Plain),
    known("getLastError", Kind::Plain),
    known("whatsmyuri", Kind::Plain),
    known("features", Kind::Plain),
    known("lockInfo", Kind::Plain),
    known("dbHash", Kind::Plain),
    known("explain", Kind::Explain),
    known("bulkWrite", Kind::BulkWrite),
    known("shardCollection", Kind::Plain),
    known("enableSharding", Kind::Plain),
    known("split", Kind::Plain),
    known("moveChunk", Kind::Plain),
    known("moveRange", Kind::Plain),
    known("refineCollectionShardKey", Kind::Plain),
    known("addShard", Kind::Plain),
    known("removeShard", Kind::Plain),
    known("listShards", Kind::Plain),
    known("balancerStart", Kind::Plain),
    known("balancerStop", Kind::Plain),
    known("balancerStatus", Kind::Plain),
    known("getShardMap", Kind::Plain),
    known("isdbgrid", Kind::Plain),
    known("setFeatureCompatibilityVersion", Kind::Plain),
    known("getDefaultRWConcern", Kind::Plain),
    known("setDefaultRWConcern", Kind::Plain),
    known("rotateCertificates", Kind::Plain),
    known("setQuerySettings", Kind::Plain),
    known("removeQuerySettings", Kind::Plain),
    known("analyzeShardKey", Kind::Plain),
    known("configureQueryAnalyzer", Kind::Plain),
    known("abortReshardCollection", Kind::Plain),
    known("reshardCollection", Kind::Plain),
    known("commitReshardCollection", Kind::Plain),
    known("unshardCollection", Kind::Plain),
    known("moveCollection", Kind::Plain),
    known("cloneCollectionAsCapped", Kind::Plain),
    known("logRotate", Kind::Plain),
    known("netstat", Kind::Plain),
    known("filemd5", Kind::Plain),
    known("driverOIDTest", Kind::Plain),
    known("eval", Kind::Plain),
    known("group", Kind::Plain),
    known("geoNear", Kind::Plain),
    known("geoSearch", Kind::Plain),
    alias("findandmodify", "findAndModify", Kind::FindAndModify),
    alias("mapreduce", "mapReduce", Kind::MapReduce),
    alias("ismaster", "isMaster", Kind::Plain),
    alias("dbstats", "dbStats", Kind::Plain),
    alias("collstats", "collStats", Kind::OnCollection),
    alias("buildinfo", "buildInfo", Kind::Plain),
    alias("getlasterror", "getLastError", Kind::Plain),
    alias("deleteIndexes", "dropIndexes", Kind::OnCollection),
];
