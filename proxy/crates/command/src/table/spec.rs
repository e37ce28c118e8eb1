//! The properties of a command, and the functions that build a row of the table.

/// Everything that Seawall knows about a command from its name.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandSpec {
    /// The canonical name, under which the command is counted.
    pub name: &'static str,
    /// Other names that servers accept for it.
    pub aliases: &'static [&'static str],
    /// How the command is served.
    pub class: Class,
    /// Its fields, which are the parts of its shape.
    pub syntax: Syntax,
    /// Where its statements are.
    pub statements: Statements,
    /// The form of its reply.
    pub reply_form: ReplyForm,
    /// When a large request can be forwarded before its end has arrived.
    pub streaming: Streaming,
    /// The reply of a pool, without a server, to a client that has not logged in. Commands of the
    /// class [`Class::Handshake`] have their own replies.
    pub reply_before_login: ReplyBeforeLogin,
    /// True if a relay forwards it for a client that has not logged in: the handshake, and harmless
    /// commands that drivers send with it. Servers run a few more without a login. For clients on
    /// their own host, these include `createUser` and similar commands while there is no user, and
    /// a relay may be on the server's host. So this list stays short.
    pub passes_relay_before_login: bool,
    /// True if its values are never written to the slow log: they may be secrets.
    pub is_secret: bool,
    /// False for commands that carry credentials (compression specification).
    pub may_be_compressed: bool,
    /// False if the command is counted under the name of unknown commands.
    pub is_counted: bool,
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

/// The fields of a command that Seawall knows. They are the parts of its shape.
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
    /// `getMore`: its collection is in a field of its own.
    GetMore,
    /// `bulkWrite`: statements on several namespaces.
    BulkWrite,
    /// `explain`: contains another command.
    Explain,
    /// A command with a collection. Its shape is empty.
    OnCollection,
    /// A command without a collection. Its shape is empty.
    Plain,
}

/// Where the statements of a command are.
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
    /// The field, or document sequence, that lists the statements.
    pub fn field(self) -> Option<&'static str> {
        match self {
            Self::Listed(field) => Some(field),
            Self::None | Self::One => None,
        }
    }
}

/// The form of a reply. It depends on the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyForm {
    /// The form of most replies.
    #[default]
    Plain,
    /// `distinct`: the results are in `values`.
    Distinct,
    /// `findAndModify`: the result of the write is in `lastErrorObject`.
    FindAndModify,
    /// `bulkWrite`: the results of its writes are the batch of a cursor.
    BulkWrite,
}

/// When a large request can be forwarded before its end has arrived: its head must contain
/// everything that its fingerprint reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streaming {
    /// Never.
    Never,
    /// As soon as its body has arrived.
    AfterBody,
    /// As soon as its body, and as many statements as a fingerprint reads, have arrived.
    AfterStatements,
}

/// The reply of a pool to a client that has not logged in, for commands that servers run without a
/// login. Seawall never forwards such a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBeforeLogin {
    /// The error that the command requires authentication.
    Refusal,
    /// An empty success.
    Ping,
    /// The last known `buildInfo` of the deployment. It also answers an `OP_QUERY`.
    BuildInfo,
    /// No user and no roles.
    ConnectionStatus,
    /// The error that `getLastError` is not supported.
    GetLastError,
}

/// A row without properties.
pub(super) const fn command(name: &'static str) -> CommandSpec {
    CommandSpec {
        name,
        aliases: &[],
        class: Class::Other,
        syntax: Syntax::Plain,
        statements: Statements::None,
        reply_form: ReplyForm::Plain,
        streaming: Streaming::Never,
        reply_before_login: ReplyBeforeLogin::Refusal,
        passes_relay_before_login: false,
        is_secret: false,
        may_be_compressed: true,
        is_counted: true,
    }
}

/// Each function sets one property of a row.
impl CommandSpec {
    pub(super) const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    pub(super) const fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    pub(super) const fn reads(self) -> Self {
        self.class(Class::Read)
    }

    pub(super) const fn writes(self) -> Self {
        self.class(Class::Write)
    }

    pub(super) const fn handshake(self, handshake: Handshake) -> Self {
        self.class(Class::Handshake(handshake))
    }

    pub(super) const fn syntax(self, syntax: Syntax) -> Self {
        Self { syntax, ..self }
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

    /// A command with credentials is also secret.
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
}
