//! The changes that make a message differ from a driver's message. Each change is a function that
//! changes a [`Draft`].

use seawall_tests::raw::message::{CHECKSUM_PRESENT, EXHAUST_ALLOWED, MORE_TO_COME};

use super::{
    draft::{Damage, DatabasePlace, Draft, Wrap},
    message::{ARRAY, Body, DOCUMENT, INT32, Query, STRING, body_section, sequence, string},
};

/// One change to a message.
pub(super) type Twist = Box<dyn Fn(&mut Draft)>;

/// Field names that a server reads, or used to read, in every command. The last three names have no
/// meaning in a command.
const GENERIC_KEYS: &[&str] = &[
    "$queryOptions",
    "$query",
    "query",
    "$orderby",
    "$readPreference",
    "$clusterTime",
    "$client",
    "$audit",
    "$configServerState",
    "$replData",
    "lsid",
    "txnNumber",
    "apiVersion",
    "maxTimeMS",
    "comment",
    "writeConcern",
    "readConcern",
    "help",
    "_id",
    "0",
    "",
];

/// Names of other commands. A field with such a name is added before or after the first field of
/// the message's own command.
const OTHERS: &[&str] = &["listDatabases", "isMaster", "nosuch"];

/// Changes to the document that contains the command, for OP_MSG and OP_QUERY.
pub(super) fn of_documents() -> Vec<Twist> {
    let mut twists = Vec::new();
    for name in GENERIC_KEYS {
        twists.push(before(Body::new().int(name, 1)));
        twists.push(before(Body::new().document(name, &Body::new())));
        twists.push(behind(Body::new().int(name, 1)));
        twists.push(behind(Body::new().document(name, &Body::new())));
    }
    for name in OTHERS {
        twists.push(before(Body::new().int(name, 1)));
        twists.push(behind(Body::new().int(name, 1)));
    }
    let secondary = Body::new().text("mode", "secondaryPreferred");
    twists.push(behind(Body::new().document("$readPreference", &secondary)));
    twists.push(behind(Body::new().text("apiVersion", "1")));
    for name in ["authenticate", "saslStart"] {
        let login = Body::new().int(name, 1).text("db", "$external");
        let login = login.text("mechanism", X509);
        twists.push(behind(Body::new().document(SPECULATIVE, &login)));
        twists.push(behind(Body::new().array(SPECULATIVE, &login)));
    }
    twists.push(twist(|draft| {
        let again = draft.behind.clone().int(&draft.name, 1);
        draft.behind = again;
    }));
    twists.extend(names());
    twists.extend(targets());
    twists.extend(wraps());
    let damages = [
        Damage::Length(1),
        Damage::Length(-1),
        Damage::Length(-5),
        Damage::Length(1 << 24),
        Damage::Length(i32::MIN),
        Damage::LastByte(1),
        Damage::LastByte(INT32),
        Damage::Cut(1),
        Damage::Cut(3),
        Damage::EarlyEnd,
    ];
    twists.extend(damages.map(|damage| twist(move |draft| draft.damage = Some(damage))));
    twists
}

/// Changes to the parts of an OP_MSG that are not specific to a command: `$db`, flags and sections.
pub(super) fn of_msgs() -> Vec<Twist> {
    use DatabasePlace::{BehindName, First, FirstAndLast, Nowhere};
    let mut twists = Vec::new();
    for place in [Nowhere, First, BehindName, FirstAndLast] {
        twists.push(twist(move |draft| draft.database_place = place));
    }
    for name in DATABASES {
        twists.push(twist(move |draft| draft.database = string(name)));
    }
    let symbol = 0x0e;
    for (kind, value) in [(symbol, string("admin")), (INT32, vec![1, 0, 0, 0])] {
        twists.push(twist(move |draft| {
            draft.database_kind = kind;
            draft.database.clone_from(&value);
        }));
    }
    for bit in [0, 1, 2, 7, 15, 16, 17, 31] {
        twists.push(twist(move |draft| draft.flags |= 1 << bit));
    }
    for flags in [
        CHECKSUM_PRESENT | MORE_TO_COME,
        MORE_TO_COME | EXHAUST_ALLOWED,
    ] {
        twists.push(twist(move |draft| draft.flags |= flags));
    }
    // Four bytes after the last section, which are neither a section nor a checksum.
    twists.push(twist(|draft| draft.sections_behind.extend([1, 2, 3, 4])));
    twists.extend(sections());
    twists
}

/// Changes to the parts of an OP_QUERY that are not specific to a command: its namespace, its
/// flags, its `numberToReturn`, the bytes after its document, and a `$db` in its document.
pub(super) fn of_queries() -> Vec<Twist> {
    let mut twists = Vec::new();
    for name in DATABASES {
        twists.push(namespace([*name, b".$cmd"].concat()));
    }
    for name in [
        "$cmd",
        "admin",
        "admin.c",
        "admin.$CMD",
        "admin.$cmd ",
        "admin.$cmd.x",
        "",
    ] {
        twists.push(namespace(name.as_bytes().to_vec()));
    }
    twists.push(namespace(b"admin.$cmd.sys.inprog".to_vec()));
    twists.push(namespace(b"admin.$cmd.$cmd".to_vec()));
    for return_count in [0, 1, 2, -2, i32::MIN] {
        twists.push(query(move |query| query.return_count = return_count));
    }
    for bit in [0, 1, 2, 4, 6, 7, 31] {
        twists.push(query(move |query| query.flags |= 1 << bit));
    }
    for tail in [
        Body::new().int("ping", 1).to_bytes(),
        vec![0],
        vec![5, 0, 0],
    ] {
        twists.push(query(move |query| query.tail.clone_from(&tail)));
    }
    twists.push(twist(|draft| draft.database_place = DatabasePlace::Last));
    twists.push(twist(|draft| draft.database_place = DatabasePlace::First));
    twists
}

fn twist(change: impl Fn(&mut Draft) + 'static) -> Twist {
    Box::new(change)
}

fn before(elements: Body) -> Twist {
    twist(move |draft| draft.before = draft.before.clone().and(&elements))
}

fn behind(elements: Body) -> Twist {
    twist(move |draft| draft.behind = draft.behind.clone().and(&elements))
}

fn query(change: impl Fn(&mut Query) + 'static) -> Twist {
    twist(move |draft| {
        if let Some(query) = &mut draft.query {
            change(query);
        }
    })
}

fn namespace(namespace: Vec<u8>) -> Twist {
    query(move |query| query.namespace.clone_from(&namespace))
}

/// Changes to the spelling of the command's name.
fn names() -> Vec<Twist> {
    let name = |change: fn(&[u8]) -> Vec<u8>| twist(move |draft| draft.name = change(&draft.name));
    vec![
        name(<[u8]>::to_ascii_lowercase),
        name(<[u8]>::to_ascii_uppercase),
        name(|name| {
            let mut name = name.to_vec();
            name[0] ^= b' ';
            name
        }),
        name(|name| [b" ", name].concat()),
        name(|name| [name, b" "].concat()),
        name(|name| [b"$", name].concat()),
        name(|name| [name, b"\xff"].concat()),
        name(|name| ["\u{feff}".as_bytes(), name].concat()),
        name(|name| [name, b"\0\x01\0\0"].concat()),
        name(|name| [b"\0", name].concat()),
        name(|name| name[..name.len() - 1].to_vec()),
    ]
}

/// Values for the first field of the command's document: the field with the command's name. There
/// are values of every BSON type except int32. There are also values of two types that BSON does
/// not define. Some of the values are invalid.
fn targets() -> Vec<Twist> {
    let empty = Body::new().to_bytes();
    let scoped = [&[15, 0, 0, 0][..], &[2, 0, 0, 0], b"x\0", &empty].concat();
    let wrongly_scoped = [&[15, 0, 0, 0][..], &[1, 0, 0, 0], b"x\0", &empty].concat();
    let old_binary = [&[6, 0, 0, 0, 2][..], &[2, 0, 0, 0], b"xy"].concat();
    let values: Vec<(u8, Vec<u8>)> = vec![
        (0x01, 1_f64.to_le_bytes().into()),
        (STRING, string("c")),
        (STRING, string(b"a\0b")),
        (STRING, string(b"\xff\xfe")),
        (STRING, vec![0; 4]),
        (STRING, [&[3, 0, 0, 0][..], b"ab"].concat()),
        (DOCUMENT, empty.clone()),
        (DOCUMENT, Body::new().int("isMaster", 1).to_bytes()),
        (ARRAY, empty),
        (0x05, vec![2, 0, 0, 0, 0, 1, 2]),
        (0x05, old_binary),
        (0x05, vec![0xff, 0xff, 0xff, 0xff, 0]),
        (0x06, Vec::new()),
        (0x07, vec![7; 12]),
        (0x08, vec![1]),
        (0x08, vec![2]),
        (0x09, vec![0; 8]),
        (0x0a, Vec::new()),
        (0x0b, b"a\0i\0".to_vec()),
        (0x0c, [string("c"), vec![7; 12]].concat()),
        (0x0d, string("x")),
        (0x0e, string("c")),
        (0x0f, scoped),
        (0x0f, wrongly_scoped),
        (0x11, vec![0; 8]),
        (0x12, 1_i64.to_le_bytes().into()),
        (0x13, vec![0; 16]),
        (0x14, vec![0; 8]),
        (0x7f, Vec::new()),
        (0xff, Vec::new()),
        (0x00, Vec::new()),
    ];
    let target = |(kind, value): (u8, Vec<u8>)| {
        twist(move |draft| {
            draft.target_kind = kind;
            draft.target.clone_from(&value);
        })
    };
    values.into_iter().map(target).collect()
}

/// Documents that contain the command as a field. Legacy drivers send commands with options in this
/// form.
fn wraps() -> Vec<Twist> {
    let mut twists = Vec::new();
    let options = Body::new().document("$queryOptions", &Body::new());
    let mode = Body::new().text("mode", "primary");
    let preference = Body::new().document("$readPreference", &mode);
    let code_with_scope = 0x0f;
    for name in ["$query", "query", "$queryOptions", "$wrapped"] {
        let new = move || Wrap::new(name);
        for kind in [ARRAY, STRING, INT32, code_with_scope] {
            twists.push(wrap(Wrap { kind, ..new() }));
        }
        for elements in [&options, &preference, &Body::new().int("listDatabases", 1)] {
            let (before, behind) = (elements.clone(), elements.clone());
            twists.push(wrap(Wrap { before, ..new() }));
            twists.push(wrap(Wrap { behind, ..new() }));
        }
        let beside = Body::new().document(name, &Body::new().int("listDatabases", 1));
        twists.push(before(beside.clone()));
        twists.push(behind(beside));
        twists.push(wrap(new()));
        for outer in ["$query", "query"] {
            twists.push(twist(move |draft| {
                draft.wraps.extend([new(), Wrap::new(outer)]);
            }));
        }
        let options = options.clone();
        twists.push(twist(move |draft| {
            draft.before = draft.before.clone().and(&options);
            draft.wraps.push(new());
        }));
    }
    twists
}

fn wrap(wrap: Wrap) -> Twist {
    twist(move |draft| draft.wraps.push(wrap.clone()))
}

/// Additional sections next to the body, in various orders and numbers.
fn sections() -> Vec<Twist> {
    let other = Body::new().int("listDatabases", 1).text("$db", "admin");
    let other = other.to_bytes();
    let mut added = vec![body_section(&other), vec![2], vec![9], vec![1, 4, 0, 0, 0]];
    for identifier in [
        "documents",
        "listDatabases",
        "$db",
        "isMaster",
        "",
        "comment",
    ] {
        added.push(sequence(identifier, &other));
    }
    let two = [sequence("a", &other), sequence("b", b"")].concat();
    added.push([two.as_slice(), &sequence("c", b"")].concat());
    added.push([sequence("a", b""), sequence("a", b"")].concat());
    added.push(two);
    added.push(sequence(b"a\0b", &other));
    added.push(sequence("documents", b"\x07\0\0\0"));
    let mut twists = Vec::new();
    for sections in added {
        let also = sections.clone();
        twists.push(twist(move |draft| draft.sections_before.extend(&also)));
        twists.push(twist(move |draft| draft.sections_behind.extend(&sections)));
    }
    twists.push(twist(|draft| {
        let own = sequence(&draft.name, &Body::new().int("listDatabases", 1).to_bytes());
        draft.sections_before.extend(own);
    }));
    twists
}

/// The authentication mechanism in which the certificate of the TLS connection replaces a password.
pub(super) const X509: &str = "MONGODB-X509";

/// The field of a `hello` that contains the first message of a login.
pub(super) const SPECULATIVE: &str = "speculativeAuthenticate";

const DATABASES: &[&[u8]] = &[
    b"test",
    b"Admin",
    b"$external",
    b"$cmd",
    b"a$b",
    b"a.b",
    b"a b",
    b"a/b",
    b"a\\b",
    b"a\"b",
    b"a*b",
    b"a\0b",
    b"admin\0",
    b"\xff",
    b"\xc3\xa4",
    b"",
    &[b'a'; 63],
    &[b'a'; 64],
];
