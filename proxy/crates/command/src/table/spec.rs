//! The properties of a command, and the functions that build a row of the table.

/// Everything that Seawall knows about a command from its name.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandSpec {
    /// The canonical name: metrics and statistics count the command under this name.
    pub name: &'static str,
    /// Other names that servers accept for the command.
    pub aliases: &'static [&'static str],
    /// How Seawall serves the command.
    pub class: Class,
    /// The syntax of the command. It decides which fields are part of the command's shape. The
    /// shape is the command without its values. Statistics count the command under its shape.
    pub syntax: Syntax,
    /// The kind of value that the first field of the command may have. Redaction hides every other
    /// value in this field.
    pub first_field: FirstField,
    /// Where the command lists its statements (the writes that it contains).
    pub statements: Statements,
    /// The fields of the server's reply that contain the results of the command.
    pub reply_form: ReplyForm,
    /// When Seawall can forward a large command before all of its bytes have arrived.
    pub streaming: Streaming,
    /// The reply that a client gets before its login when Seawall pools connections. Seawall
    /// replies itself; no server receives the command. Commands of the class [`Class::Handshake`]
    /// have their own replies.
    pub reply_before_login: ReplyBeforeLogin,
    /// True if a relay (a server connection of only one client) carries the command before this
    /// client has logged in: the handshake, and harmless commands that drivers send with it. Other
    /// commands may be dangerous. Before the first user exists, a server lets clients on its own
    /// host run commands such as `createUser`. If Seawall runs on the server's host, all clients of
    /// Seawall look to the server like clients on its own host.
    pub passes_relay_before_login: bool,
    /// True if the values of the command or of its reply may be secrets: neither the slow log nor a
    /// capture contains them.
    pub is_secret: bool,
    /// False for commands that carry credentials: the compression specification forbids compressing
    /// them.
    pub may_be_compressed: bool,
    /// False if statistics count the command under the name of [`UNKNOWN`](super::UNKNOWN) instead
    /// of its own name.
    pub is_counted: bool,
    /// True for the command `seawall`, which shows Seawall's state or reloads its configuration. If
    /// the configuration switches this command off, it is forwarded like an unknown command.
    pub is_about_seawall: bool,
    /// True if every member of a replica set runs the command, even without a read preference, and
    /// clients accept the reply of any member.
    pub runs_on_any_member: bool,
    /// True if the command ends other work: a transaction, a session, a cursor, an operation or the
    /// lock of `fsync`. The command must not wait until this work ends.
    pub ends_work: bool,
    /// True if a replay of captured traffic may send the command: it reads or changes documents,
    /// collections, indexes or databases, ends a transaction or a cursor, or is a harmless command
    /// such as `ping`. False for the handshake, for commands about sessions, users, servers and the
    /// deployment, and for some commands on collections, such as `compact` and `validate`.
    pub is_replayed: bool,
}

/// How Seawall serves a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// When Seawall pools connections, Seawall replies itself; no server receives the command.
    Handshake(Handshake),
    /// A read that changes nothing, so it may be repeated.
    Read,
    /// `aggregate`: a read unless its last stage writes.
    Aggregate,
    /// A command that changes documents, collections, indexes, databases, users or roles. In a
    /// replica set, only the primary serves it.
    Write,
    /// `commitTransaction`.
    CommitTransaction,
    /// `abortTransaction`.
    AbortTransaction,
    /// `getMore`: goes to the server that holds the cursor.
    GetMore,
    /// `killCursors`: goes to the servers that hold the cursors.
    KillCursors,
    /// Every other command, known or unknown: forwarded to a server. The command `seawall` is
    /// forwarded only if the configuration switches it off.
    Other,
}

impl Class {
    /// True for the commands that end a transaction.
    pub fn ends_transaction(self) -> bool {
        matches!(self, Self::CommitTransaction | Self::AbortTransaction)
    }

    /// True for the commands that begin a login. The field `speculativeAuthenticate` of a hello
    /// must contain such a command.
    pub fn begins_login(self) -> bool {
        matches!(
            self,
            Self::Handshake(Handshake::SaslStart | Handshake::Authenticate)
        )
    }
}

/// Commands that concern the connection or the login. Pooled connections never carry such commands
/// of clients.
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

/// The syntax of a command. It decides which fields are part of the command's shape. The shape is
/// the command without its values. Statistics count the command under its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// `find`.
    Find,
    /// `aggregate`, on a collection or a database.
    Aggregate,
    /// `count`.
    Count,
    /// `distinct`.
    Distinct,
    /// `mapReduce`.
    MapReduce,
    /// `update`.
    Update,
    /// `delete`.
    Delete,
    /// `findAndModify`.
    FindAndModify,
    /// `createIndexes`.
    CreateIndexes,
    /// `getMore`: the collection is in the field `collection`, not in the first field.
    GetMore,
    /// `bulkWrite`: statements on several namespaces.
    BulkWrite,
    /// `explain`: the value of its first field is another command.
    Explain,
    /// A command on a collection. None of its fields is part of its shape, so all calls have the
    /// same shape.
    OnCollection,
    /// A command without a collection. None of its fields is part of its shape, so all calls have
    /// the same shape.
    Plain,
}

/// The kind of value that the first field of a command may have. Any other value in this field
/// counts as user data, so redaction hides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstField {
    /// A value without a meaning: clients send the number 1 or true.
    Flag,
    /// The name of a collection, database or namespace; or the number 1.
    Name,
    /// A number or a word that the server or Seawall defines, such as a level, a time or a cursor
    /// id.
    Option,
    /// Another command.
    Command,
    /// An array of session ids.
    Sessions,
}

impl FirstField {
    /// The kind of value in the first field of commands with this syntax.
    const fn of(syntax: Syntax) -> Self {
        match syntax {
            Syntax::Plain | Syntax::BulkWrite => Self::Flag,
            Syntax::GetMore => Self::Option,
            Syntax::Explain => Self::Command,
            Syntax::Find
            | Syntax::Aggregate
            | Syntax::Count
            | Syntax::Distinct
            | Syntax::MapReduce
            | Syntax::Update
            | Syntax::Delete
            | Syntax::FindAndModify
            | Syntax::CreateIndexes
            | Syntax::OnCollection => Self::Name,
        }
    }
}

/// Where a command lists its statements: the documents to insert, or the updates and deletes to
/// run.
///
/// Source: the server's `insert`, `update`, `delete`, `bulkWrite` and `findAndModify` commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statements {
    /// The command is not a write of documents.
    None,
    /// The command is a single statement.
    One,
    /// The field, or document sequence, that lists the statements.
    Listed(&'static str),
}

impl Statements {
    /// The field, or document sequence, that lists the statements. `None` if the command has no
    /// such list.
    pub fn field(self) -> Option<&'static str> {
        match self {
            Self::Listed(field) => Some(field),
            Self::None | Self::One => None,
        }
    }
}

/// The fields in which a reply contains the results. They depend on the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyForm {
    /// Most commands: the results are a number `n` or the batch of a cursor, or there are none.
    #[default]
    Plain,
    /// `distinct`: the results are in `values`.
    Distinct,
    /// `findAndModify`: the result of the write is in `lastErrorObject`.
    FindAndModify,
    /// `bulkWrite`: the results of its writes are the batch of a cursor.
    BulkWrite,
}

/// When Seawall can forward a large command before all of its bytes have arrived. The bytes that
/// have arrived must contain all parts of the command from which its fingerprint (operation,
/// namespace and shape) is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streaming {
    /// A large command is always read whole.
    Never,
    /// A large command can be forwarded as soon as its body has arrived.
    AfterBody,
    /// A large command can be forwarded as soon as two parts of it have arrived: its body, and the
    /// statements from which its fingerprint is computed.
    AfterStatements,
}

/// Seawall's reply to a command of a client that has not logged in, when Seawall pools connections.
/// Seawall does not forward the command, even if servers run it without a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBeforeLogin {
    /// The error 13 `Unauthorized`: the command requires authentication.
    Refusal,
    /// `{ok: 1}`, as a server replies to `ping`.
    Ping,
    /// The last known `buildInfo` of the deployment, also in reply to an `OP_QUERY`.
    BuildInfo,
    /// The reply to `connectionStatus` that lists no users and no roles.
    ConnectionStatus,
    /// The error that `getLastError` is not supported.
    GetLastError,
}

/// The row of a command with default properties: Seawall forwards the command, and none of its
/// fields is part of its shape.
pub(super) const fn command(name: &'static str) -> CommandSpec {
    CommandSpec {
        name,
        aliases: &[],
        class: Class::Other,
        syntax: Syntax::Plain,
        first_field: FirstField::Flag,
        statements: Statements::None,
        reply_form: ReplyForm::Plain,
        streaming: Streaming::Never,
        reply_before_login: ReplyBeforeLogin::Refusal,
        passes_relay_before_login: false,
        is_secret: false,
        may_be_compressed: true,
        is_counted: true,
        is_about_seawall: false,
        runs_on_any_member: false,
        ends_work: false,
        is_replayed: false,
    }
}

/// Setters for the properties of a row.
impl CommandSpec {
    pub(super) const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    /// Sets the class, and marks the command as one that a replay may send.
    pub(super) const fn class(self, class: Class) -> Self {
        Self { class, ..self }.replayed()
    }

    pub(super) const fn replayed(self) -> Self {
        Self {
            is_replayed: true,
            ..self
        }
    }

    /// Marks the command as one that a replay never sends.
    pub(super) const fn never_replayed(self) -> Self {
        Self {
            is_replayed: false,
            ..self
        }
    }

    pub(super) const fn reads(self) -> Self {
        self.class(Class::Read)
    }

    pub(super) const fn writes(self) -> Self {
        self.class(Class::Write)
    }

    pub(super) const fn handshake(self, handshake: Handshake) -> Self {
        self.class(Class::Handshake(handshake)).never_replayed()
    }

    /// Sets the syntax, and the kind of value in the first field of commands with this syntax.
    pub(super) const fn syntax(self, syntax: Syntax) -> Self {
        Self {
            syntax,
            first_field: FirstField::of(syntax),
            ..self
        }
    }

    pub(super) const fn first_field(self, first_field: FirstField) -> Self {
        Self {
            first_field,
            ..self
        }
    }

    pub(super) const fn on_collection(self) -> Self {
        self.syntax(Syntax::OnCollection)
    }

    pub(super) const fn statements(self, field: &'static str) -> Self {
        let statements = Statements::Listed(field);
        Self { statements, ..self }
    }

    pub(super) const fn one_statement(self) -> Self {
        let statements = Statements::One;
        Self { statements, ..self }
    }

    pub(super) const fn reply_form(self, reply_form: ReplyForm) -> Self {
        Self { reply_form, ..self }
    }

    pub(super) const fn streaming(self, streaming: Streaming) -> Self {
        Self { streaming, ..self }
    }

    pub(super) const fn reply_before_login(self, reply_before_login: ReplyBeforeLogin) -> Self {
        Self {
            reply_before_login,
            ..self
        }
    }

    pub(super) const fn passes_relay_before_login(self) -> Self {
        Self {
            passes_relay_before_login: true,
            ..self
        }
    }

    pub(super) const fn secret(self) -> Self {
        Self {
            is_secret: true,
            ..self
        }
    }

    /// Marks the command as one that carries credentials. Its values are secret, and it is never
    /// compressed.
    pub(super) const fn credentials(self) -> Self {
        Self {
            may_be_compressed: false,
            ..self.secret()
        }
    }

    pub(super) const fn uncounted(self) -> Self {
        Self {
            is_counted: false,
            ..self
        }
    }

    pub(super) const fn about_seawall(self) -> Self {
        Self {
            is_about_seawall: true,
            ..self
        }
    }

    pub(super) const fn runs_on_any_member(self) -> Self {
        Self {
            runs_on_any_member: true,
            ..self
        }
    }

    pub(super) const fn ends_work(self) -> Self {
        Self {
            ends_work: true,
            ..self
        }
    }
}
