//! The rows of the table of commands.

use super::spec::{
    Class, CommandSpec, FirstField, Handshake, ReplyBeforeLogin, ReplyForm, Streaming, Syntax,
    command,
};

/// The row of every unknown name. After a login, an unknown command is forwarded. Its values are
/// secret: it may be a misspelled command with a password. Or it may be a command that only the
/// server knows and that carries secrets.
pub static UNKNOWN: CommandSpec = command("<unknown>").secret().uncounted();

/// All known commands.
pub static COMMANDS: &[CommandSpec] = &[
    // Commands on documents.
    command("find").reads().syntax(Syntax::Find),
    command("aggregate")
        .class(Class::Aggregate)
        .syntax(Syntax::Aggregate),
    command("count").reads().syntax(Syntax::Count),
    command("distinct")
        .reads()
        .syntax(Syntax::Distinct)
        .reply_form(ReplyForm::Distinct),
    command("mapReduce")
        .aliases(&["mapreduce"])
        .syntax(Syntax::MapReduce)
        .replayed(),
    command("insert")
        .writes()
        .on_collection()
        .statements("documents")
        // The shape of an insert does not contain its documents, so Seawall can forward the insert
        // before they have arrived.
        .streaming(Streaming::AfterBody),
    command("update")
        .writes()
        .syntax(Syntax::Update)
        .statements("updates")
        .streaming(Streaming::AfterStatements),
    command("delete")
        .writes()
        .syntax(Syntax::Delete)
        .statements("deletes")
        .streaming(Streaming::AfterStatements),
    command("findAndModify")
        .aliases(&["findandmodify"])
        .writes()
        .syntax(Syntax::FindAndModify)
        .one_statement()
        .reply_form(ReplyForm::FindAndModify),
    command("bulkWrite")
        .writes()
        .syntax(Syntax::BulkWrite)
        .statements("ops")
        .reply_form(ReplyForm::BulkWrite),
    command("getMore")
        .class(Class::GetMore)
        .syntax(Syntax::GetMore),
    command("killCursors")
        .class(Class::KillCursors)
        .on_collection()
        .ends_work(),
    command("explain").syntax(Syntax::Explain).replayed(),
    command("filemd5"),
    // Commands of transactions and sessions.
    command("commitTransaction")
        .class(Class::CommitTransaction)
        .ends_work(),
    command("abortTransaction")
        .class(Class::AbortTransaction)
        .ends_work(),
    command("startSession").runs_on_any_member(),
    command("refreshSessions")
        .first_field(FirstField::Sessions)
        .runs_on_any_member(),
    command("endSessions")
        .first_field(FirstField::Sessions)
        .runs_on_any_member()
        .ends_work(),
    command("killSessions")
        .first_field(FirstField::Sessions)
        .ends_work(),
    command("killAllSessions").ends_work(),
    command("killAllSessionsByPattern").ends_work(),
    // Commands on collections, indexes and databases.
    command("create").writes().on_collection(),
    command("drop").writes().on_collection(),
    command("collMod").writes().on_collection(),
    command("collStats")
        .aliases(&["collstats"])
        .reads()
        .on_collection(),
    command("convertToCapped").writes().on_collection(),
    command("cloneCollectionAsCapped")
        .first_field(FirstField::Name)
        .writes(),
    command("renameCollection")
        .first_field(FirstField::Name)
        .writes(),
    command("listCollections").reads(),
    command("validate").on_collection(),
    command("compact").on_collection(),
    command("dataSize").on_collection(),
    command("createIndexes")
        .writes()
        .syntax(Syntax::CreateIndexes),
    command("dropIndexes")
        .aliases(&["deleteIndexes"])
        .writes()
        .on_collection(),
    command("listIndexes").reads().on_collection(),
    command("reIndex").on_collection(),
    command("createSearchIndexes").on_collection(),
    command("updateSearchIndex").on_collection(),
    command("dropSearchIndex").on_collection(),
    command("planCacheClear").on_collection(),
    command("planCacheClearFilters").on_collection(),
    command("planCacheListFilters").on_collection(),
    command("planCacheSetFilter").on_collection(),
    command("setQuerySettings").first_field(FirstField::Command),
    command("removeQuerySettings").first_field(FirstField::Command),
    command("listDatabases").reads(),
    command("dropDatabase").writes(),
    command("dbStats").aliases(&["dbstats"]).reads(),
    command("dbHash"),
    // Commands of the connection and the login.
    command("hello")
        .handshake(Handshake::Hello)
        .passes_relay_before_login()
        .credentials(),
    command("isMaster")
        .aliases(&["ismaster"])
        .handshake(Handshake::LegacyHello)
        .passes_relay_before_login()
        .credentials(),
    command("saslStart")
        .handshake(Handshake::SaslStart)
        .passes_relay_before_login()
        .credentials(),
    command("saslContinue")
        .handshake(Handshake::SaslContinue)
        .passes_relay_before_login()
        .credentials(),
    // A relay (a server connection of only one client) does not forward `authenticate` before the
    // login: the server would see Seawall's certificate, not the client's.
    command("authenticate")
        .handshake(Handshake::Authenticate)
        .credentials(),
    command("getnonce")
        .handshake(Handshake::Getnonce)
        .passes_relay_before_login()
        .credentials(),
    command("logout")
        .handshake(Handshake::Logout)
        .passes_relay_before_login(),
    command("whatsmyuri")
        .handshake(Handshake::WhatsMyUri)
        .passes_relay_before_login(),
    command("seawall")
        .first_field(FirstField::Option)
        .about_seawall(),
    command("ping")
        .reads()
        .runs_on_any_member()
        .reply_before_login(ReplyBeforeLogin::Ping)
        .passes_relay_before_login(),
    command("buildInfo")
        .aliases(&["buildinfo"])
        .reads()
        .runs_on_any_member()
        .reply_before_login(ReplyBeforeLogin::BuildInfo)
        .passes_relay_before_login(),
    command("connectionStatus")
        .reads()
        .runs_on_any_member()
        .reply_before_login(ReplyBeforeLogin::ConnectionStatus)
        .passes_relay_before_login(),
    // Since 5.1, servers reply to `getLastError` with an error, so no client needs it before a
    // login through a relay.
    command("getLastError")
        .aliases(&["getlasterror"])
        .reply_before_login(ReplyBeforeLogin::GetLastError),
    // Commands on users and roles.
    command("createUser")
        .writes()
        .never_replayed()
        .credentials(),
    command("updateUser")
        .writes()
        .never_replayed()
        .credentials(),
    command("dropUser").writes().never_replayed(),
    command("dropAllUsersFromDatabase")
        .writes()
        .never_replayed(),
    // The reply to `usersInfo` may contain the stored SCRAM keys of users.
    command("usersInfo").secret(),
    command("grantRolesToUser").writes().never_replayed(),
    command("revokeRolesFromUser").writes().never_replayed(),
    command("createRole").writes().never_replayed(),
    command("updateRole").writes().never_replayed(),
    command("dropRole").writes().never_replayed(),
    command("dropAllRolesFromDatabase")
        .writes()
        .never_replayed()
        .uncounted(),
    command("grantRolesToRole")
        .writes()
        .never_replayed()
        .uncounted(),
    command("revokeRolesFromRole")
        .writes()
        .never_replayed()
        .uncounted(),
    command("grantPrivilegesToRole")
        .writes()
        .never_replayed()
        .uncounted(),
    command("revokePrivilegesFromRole")
        .writes()
        .never_replayed()
        .uncounted(),
    command("rolesInfo"),
    // Commands for the administration and diagnosis of servers.
    command("serverStatus"),
    command("hostInfo"),
    command("features"),
    command("listCommands"),
    command("getParameter"),
    command("setParameter").secret(),
    command("getCmdLineOpts"),
    command("setFeatureCompatibilityVersion").first_field(FirstField::Option),
    command("rotateCertificates"),
    command("getLog").first_field(FirstField::Option),
    command("logRotate"),
    // The reply contains the commands in progress, such as `createUser` with its password.
    command("currentOp").secret(),
    command("killOp").ends_work(),
    command("top"),
    command("profile").first_field(FirstField::Option),
    command("lockInfo"),
    command("connPoolStats"),
    command("netstat"),
    command("fsync"),
    command("fsyncUnlock").ends_work(),
    command("shutdown"),
    command("driverOIDTest"),
    // Commands about the replica set.
    command("replSetGetStatus"),
    command("replSetGetConfig"),
    command("replSetFreeze").first_field(FirstField::Option),
    command("replSetStepDown").first_field(FirstField::Option),
    command("replSetReconfig"),
    command("replSetInitiate"),
    command("getDefaultRWConcern"),
    command("setDefaultRWConcern"),
    // Commands about sharding.
    command("isdbgrid"),
    command("addShard"),
    command("removeShard"),
    command("listShards"),
    command("getShardMap"),
    command("enableSharding").first_field(FirstField::Name),
    command("shardCollection").first_field(FirstField::Name),
    command("unshardCollection").first_field(FirstField::Name),
    command("reshardCollection").first_field(FirstField::Name),
    command("commitReshardCollection").first_field(FirstField::Name),
    command("abortReshardCollection").first_field(FirstField::Name),
    command("refineCollectionShardKey").first_field(FirstField::Name),
    command("analyzeShardKey").first_field(FirstField::Name),
    command("configureQueryAnalyzer").first_field(FirstField::Name),
    command("split").first_field(FirstField::Name),
    command("moveChunk").first_field(FirstField::Name),
    command("moveRange").first_field(FirstField::Name),
    command("moveCollection").first_field(FirstField::Name),
    command("balancerStart"),
    command("balancerStop"),
    command("balancerStatus"),
    // Commands that only old servers have.
    command("eval"),
    command("group"),
    command("geoNear").first_field(FirstField::Name),
    command("geoSearch").first_field(FirstField::Name),
    command("copydb").credentials().uncounted(),
    command("copydbgetnonce").credentials().uncounted(),
    command("copydbSaslStart")
        .aliases(&["copydbsaslstart"])
        .credentials()
        .uncounted(),
];
