//! The walk over one command: its budget, and the rules that several parts of a command share.
//!
//! The command has depth 0. A value in a document or array is one deeper than its container. Every
//! recursive function takes the depth of its argument and stops at [`MAX_DEPTH`].

use std::marker::PhantomData;

use super::Collection;
use super::bson::{Array, Document, Field, Fields, Number, Value};
use super::form::{Bracket, Form, Node, Sequence as Ordered, Set, word};
use super::learned::Names;
use super::name::{Name, is_operator_name};

/// One walk, building forms of type `F`.
pub(super) struct Walk<'n, F> {
    looks_left: u32,
    is_spent: bool,
    /// The learned names, if any.
    known: Option<&'n Names<'n>>,
    form: PhantomData<F>,
}

impl<'n, F: Form> Walk<'n, F> {
    pub(super) fn new() -> Self {
        Self {
            looks_left: MAX_LOOKS,
            is_spent: false,
            known: None,
            form: PhantomData,
        }
    }

    /// A walk that uses learned names.
    pub(super) fn with_names(known: &'n Names<'n>) -> Self {
        Self {
            known: Some(known),
            ..Self::new()
        }
    }

    /// Sets the collection of all paths that follow.
    #[inline]
    pub(super) fn enter_collection(&self, db: &[u8], collection: Collection<'_>) {
        if let Some(known) = self.known {
            known.enter_collection(db, collection);
        }
    }

    /// A path, a field name or a variable name.
    #[inline]
    pub(super) fn path(&self, name: &[u8]) -> F {
        F::name(Name::path(name, self.known))
    }

    /// A path in an expression. It begins with `sigils` (one or two) `$`.
    pub(super) fn expression_path(&self, name: &[u8], sigils: usize) -> F {
        F::name(Name::expression_path(name, sigils, self.known))
    }

    /// An operator if the name begins with `$`, else a path.
    pub(super) fn operator_or_path(&self, name: &[u8]) -> F {
        if name.first() == Some(&b'$') {
            operator(name)
        } else {
            self.path(name)
        }
    }

    /// True if the walk reached its limit before it had looked at everything that the rules
    /// require.
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// Takes the next field or element and charges it to the budget.
    #[inline]
    pub(super) fn look<T>(&mut self, items: &mut impl Iterator<Item = T>) -> Option<T> {
        if self.looks_left == 0 {
            self.is_spent |= items.next().is_some();
            return None;
        }
        let item = items.next();
        self.looks_left -= u32::from(item.is_some());
        item
    }

    /// The same as [`Walk::look`], but with the inlined [`Fields::advance`].
    #[inline(always)]
    pub(super) fn look_inline<'a>(&mut self, fields: &mut Fields<'a>) -> Option<Field<'a>> {
        if self.looks_left == 0 {
            self.is_spent |= fields.next().is_some();
            return None;
        }
        let field = fields.advance();
        self.looks_left -= u32::from(field.is_some());
        field
    }

    /// Prints a document as a set. `key` makes the forms of the names, `value` those of the values.
    pub(super) fn set_of(
        &mut self,
        document: Document<'_>,
        key: impl Fn(&Self, &[u8]) -> F,
        mut value: impl FnMut(&mut Self, &Field<'_>) -> Node<F>,
    ) -> Node<F> {
        Set::of(Bracket::Document, |set| {
            let mut fields = document.fields();
            while let Some(field) = &self.look(&mut fields) {
                let form = value(self, field);
                set.entry(&key(self, field.name), &form);
            }
        })
    }

    /// Prints a list as a set. `item` makes the form of an element, or `None` to skip the element.
    pub(super) fn list_of(
        &mut self,
        array: Array<'_>,
        mut item: impl FnMut(&mut Self, &Value<'_>) -> Option<Node<F>>,
    ) -> Node<F> {
        Set::of(Bracket::List, |set| {
            let mut elements = array.elements();
            while let Some(element) = &self.look(&mut elements) {
                if let Some(form) = item(self, &element.value) {
                    set.item(&form);
                }
            }
        })
    }

    /// Prints only the names of a document.
    pub(super) fn names_of(&mut self, document: Document<'_>) -> Node<F> {
        self.set_of(document, Self::operator_or_path, |_, _| Node::value())
    }

    /// Names that a command has as a string or as an array of strings.
    pub(super) fn names(&mut self, value: &Value<'_>) -> Node<F> {
        match *value {
            Value::String(name) => Node::same(self.path(name)),
            Value::Array(names) => self.list_of(names, |walk, name| {
                Some(match *name {
                    Value::String(name) => Node::same(walk.path(name)),
                    _ => Node::value(),
                })
            }),
            _ => Node::value(),
        }
    }

    /// Keys in their order, each with its direction or index type.
    pub(super) fn keys(&mut self, document: Document<'_>) -> Node<F> {
        let mut keys = Ordered::new();
        let mut fields = document.fields();
        while let Some(Field { name, value, .. }) = &self.look(&mut fields) {
            let is_path = name.first() != Some(&b'$') || name.contains(&b'.');
            let key = if is_path {
                self.path(name)
            } else {
                operator(name)
            };
            keys.entry(&key, &Node::same(direction(value)));
        }
        if fields.is_cut() {
            keys.item(&Node::cut());
        }
        keys.close(Bracket::Document)
    }

    /// Keys in their order if the value is a document, else `?`.
    pub(super) fn keys_or_value(&mut self, value: &Value<'_>) -> Node<F> {
        match *value {
            Value::Document(document) => self.keys(document),
            _ => Node::value(),
        }
    }

    /// Keys in their order, without their values.
    pub(super) fn bounds(&mut self, document: Document<'_>) -> Node<F> {
        let mut keys = Ordered::new();
        let mut fields = document.fields();
        while let Some(field) = &self.look(&mut fields) {
            keys.entry(&self.path(field.name), &Node::value());
        }
        keys.close(Bracket::Document)
    }

    /// A collation. Its values are printed because it decides which indexes a filter can use.
    pub(super) fn collation(&mut self, document: Document<'_>) -> Node<F> {
        self.set_of(
            document,
            |_, key| F::name(Name::verbatim(key)),
            |_, field| {
                Node::same(match field.value {
                    Value::True => F::word(word!("true")),
                    Value::False => F::word(word!("false")),
                    Value::Integer(number) => integer(number),
                    Value::String(string) if string.len() <= MAX_COLLATION_STRING_BYTES => {
                        F::name(Name::verbatim(string))
                    }
                    _ => F::word(word!("?")),
                })
            },
        )
    }
}

/// The name of an operator or stage, which begins with `$`. It is printed only if it has the form
/// of the server's own names.
pub(super) fn operator<F: Form>(name: &[u8]) -> F {
    if is_operator_name(name) {
        F::leaf(name)
    } else {
        F::word(word!("$?"))
    }
}

/// A value in a filter, where the rules distinguish null from other values.
pub(super) fn filter_value<F: Form>(value: &Value<'_>) -> Node<F> {
    match value {
        Value::Null => Node::word(word!("null")),
        _ => plain_value(value),
    }
}

/// A value outside filters.
pub(super) fn plain_value<F: Form>(value: &Value<'_>) -> Node<F> {
    Node::word(match value {
        Value::Document(_) => word!("{?}"),
        Value::Array(_) => word!("[?]"),
        _ => word!("?"),
    })
}

/// The argument of `$meta`.
pub(super) fn meta<F: Form>(value: &Value<'_>) -> F {
    match *value {
        Value::String(name) if META_NAMES.contains(&name) => F::leaf(name),
        _ => F::word(word!("?")),
    }
}

/// The direction of a sort key, or the type of an index key.
fn direction<F: Form>(value: &Value<'_>) -> F {
    match *value {
        Value::String(kind) if INDEX_TYPES.contains(&kind) => return F::leaf(kind),
        Value::Document(document) => {
            if let Some(first) = document.first().filter(|first| first.name == b"$meta") {
                let mut meta_document = F::Unordered::default();
                F::add(
                    &mut meta_document,
                    &F::entry(&F::word(word!("$meta")), &meta(&first.value)),
                );
                return F::close_set(meta_document, Bracket::Document);
            }
        }
        _ => {}
    }
    F::word(match value.number() {
        Some(Number::One | Number::Positive) => word!("1"),
        Some(Number::MinusOne | Number::Negative) => word!("-1"),
        Some(Number::Zero | Number::Nan) | None => word!("?"),
    })
}

fn integer<F: Form>(number: i64) -> F {
    // An i64 has at most 19 digits and a sign.
    let mut text = [b'-'; 20];
    let mut digits = number.unsigned_abs();
    let mut start = text.len();
    for slot in text.iter_mut().rev() {
        *slot = b'0' + u8::try_from(digits % 10).unwrap_or_default();
        digits /= 10;
        start -= 1;
        if digits == 0 {
            break;
        }
    }
    if number.is_negative() {
        start = start.saturating_sub(1);
    }
    F::leaf(text.get(start..).unwrap_or_default())
}

/// Maximum depth of the walk. It bounds the recursion, and so the stack.
pub(super) const MAX_DEPTH: u32 = 32;
/// Maximum number of fields and elements that are looked at in one command. It bounds the time of a
/// fingerprint.
const MAX_LOOKS: u32 = 4096;
/// Longest string of a collation that is printed; locales are far shorter.
const MAX_COLLATION_STRING_BYTES: usize = 32;

/// Index types: the strings that are printed as a direction.
const INDEX_TYPES: [&[u8]; 9] = [
    b"text",
    b"2d",
    b"2dsphere",
    b"hashed",
    b"geoHaystack",
    b"wildcard",
    b"2dsphere_bucket",
    b"columnstore",
    b"queryable_encrypted_range",
];

/// The arguments of `$meta` that are printed.
const META_NAMES: [&[u8]; 15] = [
    b"textScore",
    b"indexKey",
    b"recordId",
    b"randVal",
    b"sortKey",
    b"geoNearDistance",
    b"geoNearPoint",
    b"searchScore",
    b"searchScoreDetails",
    b"searchHighlights",
    b"searchSequenceToken",
    b"searchRootDocumentId",
    b"vectorSearchScore",
    b"score",
    b"scoreDetails",
];
