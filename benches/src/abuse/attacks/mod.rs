//! All attacks, in the order in which they run.

mod documents;
mod logins;
mod messages;
mod operations;
mod relays;
mod sockets;

use super::{
    Attack,
    arena::Ending::{Closed, Held, Refused, Replied},
    testbed::CONFIGURED_USERS,
};

/// The error code `AuthenticationFailed`.
const AUTHENTICATION_FAILED: i32 = 18;
/// The error code `Unauthorized`.
const UNAUTHORIZED: i32 = 13;
/// The error code `MechanismUnavailable`.
const MECHANISM_UNAVAILABLE: i32 = 334;
/// The HTTP status with which the admin address refuses a request. It is not an error code of a
/// server.
const HTTP_FORBIDDEN: i32 = 403;

/// Converts an attack's function to the type of [`Attack::run`].
macro_rules! run {
    ($function:path) => {
        |arena| Box::pin($function(arena))
    };
}

/// All attacks, in the order in which they run. The first two entries are not attacks: they show
/// how much the measurements vary without an attack, and how much a busy CPU alone delays the
/// victims.
pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "nothing",
        description: "no attack, for comparison",
        toml: "",
        expected: &[],
        run: run!(operations::nothing),
    },
    Attack {
        name: "busy-neighbour",
        description: "no attack: a thread with the lowest priority uses the CPU all the time",
        toml: "",
        expected: &[],
        run: run!(operations::busy_neighbour),
    },
    Attack {
        name: "silent-sockets",
        description: "4,096 connections that send nothing",
        toml: "",
        expected: &[Held, Closed],
        run: run!(sockets::silent),
    },
    Attack {
        name: "greeted-sockets",
        description: "4,096 connections that send hello and do not log in",
        toml: "",
        expected: &[Held, Closed],
        run: run!(sockets::greeted),
    },
    Attack {
        name: "unfinished-logins",
        description: "100 connections that repeatedly begin, and never finish, logins of 25 users that Seawall does not know",
        toml: "",
        expected: &[Held, Closed],
        run: run!(logins::unfinished),
    },
    Attack {
        name: "claimed-first-logins",
        description: "100 connections that repeatedly begin, and never finish, logins of 16 victims that Seawall does not know yet",
        toml: "",
        expected: &[Held, Closed],
        run: run!(logins::claimed),
    },
    Attack {
        name: "outdated-keys",
        description: "100 logins per second with an outdated password; the password changes 5 times per second",
        toml: "",
        expected: &[Refused(AUTHENTICATION_FAILED)],
        run: run!(logins::outdated),
    },
    Attack {
        name: "victims-name",
        description: "200 logins per second in a victim's name with a wrong password",
        toml: "",
        expected: &[Refused(AUTHENTICATION_FAILED)],
        run: run!(logins::victims_name),
    },
    Attack {
        name: "long-names",
        description: "2,000 hello commands per second with user names of 15,000 bytes",
        toml: "",
        expected: &[Replied],
        run: run!(logins::long_names),
    },
    Attack {
        name: "pipelined-login",
        description: "100 logins per second with a wrong proof; commands are sent between and after the steps",
        toml: "",
        expected: &[Refused(UNAUTHORIZED)],
        run: run!(logins::pipelined),
    },
    Attack {
        name: "replayed-scram",
        description: "50 logins per second that repeat the last message of an accepted login",
        toml: "",
        expected: &[Refused(AUTHENTICATION_FAILED)],
        run: run!(logins::replayed),
    },
    Attack {
        name: "altered-scram",
        description: "100 logins per second with a valid proof in an altered message",
        toml: "",
        expected: &[Refused(AUTHENTICATION_FAILED)],
        run: run!(logins::altered),
    },
    Attack {
        name: "mechanism-confusion",
        description: "100 logins per second that name an unsupported mechanism, name two mechanisms, or begin with one SCRAM mechanism and send the proof of the other",
        toml: "",
        expected: &[Refused(MECHANISM_UNAVAILABLE)],
        run: run!(logins::confused),
    },
    Attack {
        name: "interleaved-logins",
        description: "100 logins per second; the attacker begins its own login, then a victim's login on the same or another connection, and there sends the proof of its own login",
        toml: "",
        expected: &[Refused(AUTHENTICATION_FAILED)],
        run: run!(logins::interleaved),
    },
    Attack {
        name: "restricted-address",
        description: "100 logins per second with the right password of a user whose restrictions forbid the address; Seawall has the user's keys from its configuration",
        toml: CONFIGURED_USERS,
        expected: &[Refused(AUTHENTICATION_FAILED)],
        run: run!(logins::restricted),
    },
    Attack {
        name: "many-conversations",
        description: "20 connections per second with 200 saslStart commands each",
        toml: "",
        expected: &[Replied],
        run: run!(logins::many_conversations),
    },
    Attack {
        name: "compressed-before-login",
        description: "200 compressed pings per second before a login",
        toml: "",
        expected: &[Closed],
        run: run!(messages::compressed_before_login),
    },
    Attack {
        name: "compression-bombs",
        description: "4 messages per second: 47 KB that inflate to up to 48 MB, or to another size than declared",
        toml: "",
        expected: &[Closed],
        run: run!(messages::bombs),
    },
    Attack {
        name: "largest-messages",
        description: "2 messages per second of 48,000,000 bytes, from a client that sent metadata",
        toml: "",
        expected: &[Refused(UNAUTHORIZED)],
        run: run!(messages::largest),
    },
    Attack {
        name: "slow-senders",
        description: "5,000 logged-in connections that announce messages of 48 MB, half of them compressed, and send 1,000 bytes every 2 s",
        toml: "",
        expected: &[Held, Closed],
        run: run!(messages::slow_senders),
    },
    Attack {
        name: "partial-messages",
        description: "5,000 logged-in connections that send only the first 60,000 bytes of a message of 64 KiB",
        toml: "",
        expected: &[Held, Closed],
        run: run!(messages::partial),
    },
    Attack {
        name: "slow-readers",
        description: "100 logged-in connections that request a reply of 15 MiB; half read 64 bytes per second, half read nothing",
        toml: "",
        expected: &[Replied, Closed],
        run: run!(messages::slow_readers),
    },
    Attack {
        name: "slow-compressed-readers",
        description: "like slow-readers, but with compressed replies",
        toml: "",
        expected: &[Replied, Closed],
        run: run!(messages::slow_compressed_readers),
    },
    Attack {
        name: "many-slow-readers",
        description: "5,000 logged-in connections that request a reply of 1 MiB; half read 64 bytes per second, half read nothing",
        toml: "",
        expected: &[Replied, Closed],
        run: run!(messages::many_slow_readers),
    },
    Attack {
        name: "slow-queries",
        description: "150 clients of one user, each with queries that take one second",
        toml: "",
        expected: &[Replied],
        run: run!(operations::slow_queries),
    },
    Attack {
        name: "departures",
        description: "100 logged-in connections per second that request a reply and disconnect at once; then one connection that reads its own reply",
        toml: "",
        expected: &[Replied],
        run: run!(operations::departures),
    },
    Attack {
        name: "deep-documents",
        description: "50 documents per second with up to 100,000 levels; the slow log is on",
        toml: "slow_log.threshold_ms = 0\nslow_log.redact = false\nslow_log.file = \"/dev/null\"\n",
        expected: &[Refused(documents::OVERFLOW)],
        run: run!(documents::deep),
    },
    Attack {
        name: "duplicate-keys",
        description: "200 commands per second in which $db, the command, lsid or filter occurs twice",
        toml: "",
        expected: &[Refused(documents::DUPLICATE_FIELD)],
        run: run!(documents::duplicate_keys),
    },
    Attack {
        name: "embedded-nuls",
        description: "200 commands per second with a NUL byte in a database, collection or user name",
        toml: "",
        expected: &[Refused(documents::INVALID_NAMESPACE)],
        run: run!(documents::embedded_nuls),
    },
    Attack {
        name: "cross-site-admin",
        description: "100 requests per second as a browser sends them for another site's page",
        toml: "",
        expected: &[Refused(HTTP_FORBIDDEN)],
        run: run!(relays::cross_site),
    },
    Attack {
        name: "relay-guard",
        description: "100 commands per second before a login: plain, inside another document, compressed, or an X.509 login; Seawall runs in relay mode",
        toml: "deployment.mode = \"relay\"\n",
        expected: &[Refused(UNAUTHORIZED)],
        run: run!(relays::guard),
    },
];
