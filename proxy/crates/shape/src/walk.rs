//! The walk over one command: its limits, and the forms (parts of a shape, see [`Form`]) of values
//! that occur in several clauses.
//!
//! The command has depth 0. A value in a document or array is one level deeper than its container.
//! Every recursive function takes the depth of its argument and stops at [`MAX_DEPTH`].

use std::marker::PhantomData;

use super::Collection;
use super::bson::{Array, Document, Field, Fields, Number, Value};
use super::form::{Bracket, Form, Node, Sequence as Ordered, Set, word};
use super::learned::Names;
use super::name::{Name, is_operator_name};

/// One pass over a command, which builds the parts of its shape (see [`Form`]). `F` is the type of
/// these parts: text or hashes.
pub(super) struct Walk<'n, F> {
    visits_left: u32,
    is_spent: bool,
    /// The learned prefixes (paths below which all names count as data), if there are any.
    known: Option<&'n Names<'n>>,
    /// True in an argument whose strings are values even if they begin with `$`.
    pub(super) hides_strings: bool,
    form: PhantomData<F>,
}

impl<'n, F: Form> Walk<'n, F> {
    pub(super) fn new() -> Self {
        Self {
            visits_left: MAX_VISITS,
            is_spent: false,
            known: None,
            hides_strings: false,
            form: PhantomData,
        }
    }

    /// A walk in which names directly after a learned prefix of a field path count as data, and
    /// become `*`.
    pub(super) fn with_names(known: &'n Names<'n>) -> Self {
        Self {
            known: Some(known),
            ..Self::new()
        }
    }

    /// Sets the collection to which all following paths belong.
    #[inline]
    pub(super) fn enter_collection(&self, db: &[u8], collection: Collection<'_>) {
        if let Some(known) = self.known {
            known.enter_collection(db, collection);
        }
    }

    /// The part of the shape for a path, a field name or a variable name.
    #[inline]
    pub(super) fn path(&self, name: &[u8]) -> F {
        F::name(Name::path(name, self.known))
    }

    /// The part of the shape for a path in an expression. `name` begins with one or two `$`, and
    /// `sigils` is their number.
    pub(super) fn expression_path(&self, name: &[u8], sigils: usize) -> F {
        F::name(Name::expression_path(name, sigils, self.known))
    }

    /// The part of the shape for the name of an index. Most such names consist of field names, so
    /// the name is hashed if field names are.
    pub(super) fn index_name(&self, name: &[u8]) -> F {
        match self.known.and_then(Names::key) {
            Some(key) => F::leaf(key.hash(name).as_bytes()),
            None => F::name(Name::verbatim(name)),
        }
    }

    /// The part of the shape for an operator if the name begins with `$`, otherwise for a path.
    pub(super) fn operator_or_path(&self, name: &[u8]) -> F {
        if name.first() == Some(&b'$') {
            operator(name)
        } else {
            self.path(name)
        }
    }

    /// True if the walk reached its limit, so that it did not read everything that the rules
    /// require.
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// Returns the next field or element, and counts it toward the limit of the walk.
    #[inline]
    pub(super) fn visit<T>(&mut self, items: &mut impl Iterator<Item = T>) -> Option<T> {
        if self.visits_left == 0 {
            self.is_spent |= items.next().is_some();
            return None;
        }
        let item = items.next();
        self.visits_left -= u32::from(item.is_some());
        item
    }

    /// Like [`Walk::visit`], but with the inlined [`Fields::advance`].
    #[inline(always)]
    pub(super) fn visit_inline<'a>(&mut self, fields: &mut Fields<'a>) -> Option<Field<'a>> {
        if self.visits_left == 0 {
            self.is_spent |= fields.next().is_some();
            return None;
        }
        let field = fields.advance();
        self.visits_left -= u32::from(field.is_some());
        field
    }

    /// The part of the shape for a document in which the order of the fields does not matter. `key`
    /// builds the part for a field name, and `value` builds the part for the field's value.
    pub(super) fn set_of(
        &mut self,
        document: Document<'_>,
        key: impl Fn(&Self, &[u8]) -> F,
        mut value: impl FnMut(&mut Self, &Field<'_>) -> Node<F>,
    ) -> Node<F> {
        Set::of(Bracket::Document, |set| {
            let mut fields = document.fields();
            while let Some(field) = &self.visit(&mut fields) {
                let form = value(self, field);
                set.entry(&key(self, field.name), &form);
            }
        })
    }

    /// The part of the shape for an array in which the order of the elements does not matter.
    /// `item` builds the part for one element; `None` skips the element.
    pub(super) fn list_of(
        &mut self,
        array: Array<'_>,
        mut item: impl FnMut(&mut Self, &Value<'_>) -> Option<Node<F>>,
    ) -> Node<F> {
        Set::of(Bracket::List, |set| {
            let mut elements = array.elements();
            while let Some(element) = &self.visit(&mut elements) {
                if let Some(form) = item(self, &element.value) {
                    set.item(&form);
                }
            }
        })
    }

    /// The part of the shape for a document whose field names are printed and whose values are
    /// printed as `?`.
    pub(super) fn names_of(&mut self, document: Document<'_>) -> Node<F> {
        self.set_of(document, Self::operator_or_path, |_, _| Node::value())
    }

    /// The part of the shape for a value that is one name or an array of names.
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

    /// The part of the shape for a sort or an index: the keys in their order, each with direction
    /// or index type.
    pub(super) fn keys(&mut self, document: Document<'_>) -> Node<F> {
        let mut keys = Ordered::new();
        let mut fields = document.fields();
        while let Some(Field { name, value, .. }) = &self.visit(&mut fields) {
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

    /// The part of the shape for a sort or an index if the value is a document, otherwise `?`.
    pub(super) fn keys_or_value(&mut self, value: &Value<'_>) -> Node<F> {
        match *value {
            Value::Document(document) => self.keys(document),
            _ => Node::value(),
        }
    }

    /// The part of the shape for the bounds of an index scan: the keys in their order, without
    /// their values.
    pub(super) fn bounds(&mut self, document: Document<'_>) -> Node<F> {
        let mut keys = Ordered::new();
        let mut fields = document.fields();
        while let Some(field) = &self.visit(&mut fields) {
            keys.entry(&self.path(field.name), &Node::value());
        }
        keys.close(Bracket::Document)
    }

    /// The part of the shape for a collation. Its values are printed because they decide which
    /// indexes a filter can use.
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

/// The part of the shape for the name of an operator or stage, which begins with `$`. The name is
/// printed only if it has the characters and the length of a name that servers use; otherwise `$?`
/// is printed.
pub(super) fn operator<F: Form>(name: &[u8]) -> F {
    if is_operator_name(name) {
        F::leaf(name)
    } else {
        F::word(word!("$?"))
    }
}

/// The part of the shape for a value in a filter: null is printed as `null`, not as `?`.
pub(super) fn filter_value<F: Form>(value: &Value<'_>) -> Node<F> {
    match value {
        Value::Null => Node::word(word!("null")),
        _ => plain_value(value),
    }
}

/// The part of the shape for a value outside of filters.
pub(super) fn plain_value<F: Form>(value: &Value<'_>) -> Node<F> {
    Node::word(match value {
        Value::Document(_) => word!("{?}"),
        Value::Array(_) => word!("[?]"),
        _ => word!("?"),
    })
}

/// The part of the shape for the argument of `$meta`.
pub(super) fn meta<F: Form>(value: &Value<'_>) -> F {
    match *value {
        Value::String(name) if META_NAMES.contains(&name) => F::leaf(name),
        _ => F::word(word!("?")),
    }
}

/// The part of the shape for a sort key's direction, or for an index key's type.
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

/// Maximum depth of the walk. It limits the recursion, and so the use of the stack.
pub(super) const MAX_DEPTH: u32 = 32;
/// Maximum number of fields and elements read in one command. It limits the time of a fingerprint.
const MAX_VISITS: u32 = 4096;
/// Maximum length of a printed string of a collation. Locales are far shorter.
const MAX_COLLATION_STRING_BYTES: usize = 32;

/// The index types that are printed in place of a direction.
pub(super) const INDEX_TYPES: [&[u8]; 9] = [
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
pub(super) const META_NAMES: [&[u8]; 15] = [
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
