//! Turns filters into parts of a shape. A filter is a set of conjuncts (conditions that must all
//! hold); `$and` adds its conditions to this set.

use super::bson::{Array, Document, Field, Regex, Value};
use super::form::{Bracket, Conjuncts, Form, Node, Role, Set, word};
use super::walk::{MAX_DEPTH, Walk, filter_value, operator};

impl<F: Form> Walk<'_, F> {
    /// Turns a filter into a part of the shape. `depth` is its nesting level in the command.
    pub(super) fn filter(&mut self, filter: Document<'_>, depth: u32) -> Node<F> {
        if depth > MAX_DEPTH {
            return Node::cut();
        }
        Conjuncts::of(|conjuncts| self.gather(filter, depth, conjuncts))
    }

    /// The part of the shape for a filter if the value is a document, otherwise `?`.
    pub(super) fn filter_or_value(&mut self, value: &Value<'_>, depth: u32) -> Node<F> {
        match *value {
            Value::Document(filter) => self.filter(filter, depth),
            _ => Node::value(),
        }
    }

    /// The part of the shape for an array of filters. Their order does not matter, and equal
    /// filters are printed once. Elements that are not documents are skipped.
    pub(super) fn filters(&mut self, filters: Array<'_>, depth: u32) -> Node<F> {
        self.list_of(filters, |walk, element| match *element {
            Value::Document(filter) => Some(walk.filter(filter, depth + 1)),
            _ => None,
        })
    }

    /// The part of the shape for an operator document, such as `{$gt: 1}`: its operators with their
    /// arguments. The order of the operators does not matter. Used if the document is the argument
    /// of another operator, such as `$not` or `$pull`.
    pub(super) fn operators(&mut self, operators: Document<'_>, depth: u32) -> Node<F> {
        if depth > MAX_DEPTH {
            return Node::cut();
        }
        Set::of(Bracket::Document, |set| {
            let mut fields = operators.fields();
            while let Some(field) = &self.visit(&mut fields) {
                if let Some((_, argument)) = self.operator_argument(field, operators, depth) {
                    set.entry(&self.operator_or_path(field.name), &argument);
                }
            }
        })
    }

    /// Adds the conditions in a filter document to the conditions of the enclosing filter (its
    /// conjuncts: conditions that must all hold).
    fn gather(&mut self, filter: Document<'_>, depth: u32, conjuncts: &mut Conjuncts<'_, F>) {
        let mut fields = filter.fields();
        while let Some(field) = &self.visit(&mut fields) {
            if field.name.first() == Some(&b'$') {
                self.gather_top(field, depth, conjuncts);
            } else {
                self.gather_path(field, depth, conjuncts);
            }
        }
    }

    fn gather_top(&mut self, field: &Field<'_>, depth: u32, conjuncts: &mut Conjuncts<'_, F>) {
        let argument = match (field.name, &field.value) {
            (b"$and", &Value::Array(filters)) => return self.gather_and(filters, depth, conjuncts),
            (b"$or" | b"$nor", &Value::Array(filters)) => {
                self.filters(filters, depth + 1).with_coarse(word!("[...]"))
            }
            (b"$comment", _) => return,
            (b"$where" | b"$jsonSchema" | b"$sampleRate" | b"$alwaysTrue" | b"$alwaysFalse", _) => {
                Node::value()
            }
            (b"$text", &Value::Document(arguments)) => self.names_of(arguments),
            (b"$expr", expression) => self.expression(expression, depth + 1),
            (_, value) => filter_value(value),
        };
        conjuncts.top(&operator(field.name), &argument);
    }

    fn gather_and(&mut self, filters: Array<'_>, depth: u32, conjuncts: &mut Conjuncts<'_, F>) {
        let mut elements = filters.elements();
        while let Some(element) = &self.visit(&mut elements) {
            let Value::Document(filter) = element.value else {
                continue;
            };
            if depth + 2 > MAX_DEPTH {
                conjuncts.top(&F::word(word!("$and")), &Node::cut());
            } else {
                self.gather(filter, depth + 2, conjuncts);
            }
        }
    }

    fn gather_path(&mut self, field: &Field<'_>, depth: u32, conjuncts: &mut Conjuncts<'_, F>) {
        let path = self.path(field.name);
        let operators = match &field.value {
            &Value::Regex(regex) => {
                return conjuncts.add(Role::Regex, &path, &regex_form(regex));
            }
            &Value::Document(document) if document.is_operator_document() => document,
            value => return conjuncts.add(Role::Equal, &path, &filter_value(value)),
        };
        if depth + 1 > MAX_DEPTH {
            return conjuncts.add(Role::Equal, &path, &Node::cut());
        }
        let mut fields = operators.fields();
        while let Some(field) = &self.visit(&mut fields) {
            match self.operator_argument(field, operators, depth + 1) {
                Some((Role::Operator, argument)) => {
                    let form = Node::entry(&self.operator_or_path(field.name), &argument);
                    conjuncts.add(Role::Operator, &path, &form);
                }
                Some((role, argument)) => conjuncts.add(role, &path, &argument),
                None => {}
            }
        }
    }

    /// The [`Role`] of one operator in a filter, and the part of the shape for its argument.
    /// `depth` is the nesting level of the argument. `None` for `$options`, because the shape shows
    /// the options with the `$regex` in the same document. `siblings` is the document that contains
    /// the operator.
    fn operator_argument(
        &mut self,
        field: &Field<'_>,
        siblings: Document<'_>,
        depth: u32,
    ) -> Option<(Role, Node<F>)> {
        let argument = match (field.name, &field.value) {
            (b"$eq", value) => return Some((Role::Equal, filter_value(value))),
            (b"$regex", pattern) => {
                return Some((Role::Regex, regex_operator(pattern, siblings)));
            }
            (b"$options", _) => return None,
            (b"$in" | b"$nin", _) => Node::word(word!("[?]")),
            (b"$exists", value) => Node::word(if value.truth() {
                word!("true")
            } else {
                word!("false")
            }),
            (b"$elemMatch", &Value::Document(document)) => self.elem_match(document, depth + 1),
            (b"$all", &Value::Array(array)) => self.all(array, depth + 1),
            (b"$not", &Value::Regex(regex)) => regex_form(regex),
            (b"$not", &Value::Document(document)) if document.is_operator_document() => {
                self.operators(document, depth + 1)
            }
            (
                b"$geoWithin" | b"$geoIntersects" | b"$near" | b"$nearSphere" | b"$within",
                &Value::Document(document),
            ) => self.geometry(document),
            (_, value) => filter_value(value),
        };
        Some((Role::Operator, argument))
    }

    fn elem_match(&mut self, document: Document<'_>, depth: u32) -> Node<F> {
        if document.is_operator_document() && !document.begins_filter() {
            self.operators(document, depth)
        } else {
            self.filter(document, depth)
        }
    }

    fn all(&mut self, array: Array<'_>, depth: u32) -> Node<F> {
        let holds_elem_match = matches!(
            array.first(),
            Some(Value::Document(first))
                if first.first().is_some_and(|field| field.name == b"$elemMatch")
        );
        if !holds_elem_match {
            return Node::word(word!("[?]"));
        }
        self.list_of(array, |walk, element| {
            Some(match element {
                &Value::Document(operators) => walk.operators(operators, depth + 1),
                value => filter_value(value),
            })
        })
    }

    /// The part of the shape for the argument of a geospatial operator. It contains only the names
    /// of the operators in the argument. All other content is data.
    fn geometry(&mut self, document: Document<'_>) -> Node<F> {
        let mut is_empty = true;
        let set = Set::of(Bracket::Document, |set| {
            let mut fields = document.fields();
            while let Some(field) = &self.visit(&mut fields) {
                if field.name.first() == Some(&b'$') {
                    set.entry(&operator(field.name), &Node::value());
                    is_empty = false;
                }
            }
        });
        if is_empty { Node::value() } else { set }
    }
}

fn regex_operator<F: Form>(pattern: &Value<'_>, siblings: Document<'_>) -> Node<F> {
    let options = match siblings.value_of(b"$options") {
        Some(Value::String(options)) => Some(options),
        _ => None,
    };
    match pattern {
        &Value::String(pattern) => pattern_form(pattern, options.unwrap_or_default()),
        &Value::Regex(regex) => {
            let (pattern, own_options) = regex.pattern_and_options();
            pattern_form(pattern, options.unwrap_or(own_options))
        }
        value => filter_value(value),
    }
}

/// The part of the shape for a BSON regular expression.
pub(super) fn regex_form<F: Form>(regex: Regex<'_>) -> Node<F> {
    let (pattern, options) = regex.pattern_and_options();
    pattern_form(pattern, options)
}

/// The part of the shape for a regular expression: `/^?/` or `/?/`, and then the options. It begins
/// with `/^?/` if the server can use a literal prefix of the pattern for an index scan: the pattern
/// has such a prefix, and the options contain neither `i` nor `m`.
fn pattern_form<F: Form>(pattern: &[u8], options: &[u8]) -> Node<F> {
    let narrows =
        !options.iter().any(|option| matches!(option, b'i' | b'm')) && has_literal_prefix(pattern);
    let mut text = [0; MAX_REGEX_TEXT_BYTES];
    let frame: &[u8] = if narrows { b"/^?/" } else { b"/?/" };
    let flags = b"imsux".iter().filter(|flag| options.contains(flag));
    let mut length = 0;
    for (slot, &byte) in text.iter_mut().zip(frame.iter().chain(flags)) {
        *slot = byte;
        length += 1;
    }
    Node::same(F::leaf(text.get(..length).unwrap_or_default()))
}

/// True if the server can turn the beginning of the pattern into bounds of an index scan.
pub fn has_literal_prefix(pattern: &[u8]) -> bool {
    let Some(anchored) = pattern
        .strip_prefix(b"^")
        .or_else(|| pattern.strip_prefix(b"\\A"))
    else {
        return false;
    };
    let after_literal = match anchored {
        [b'\\', b'Q', ..] => return !pattern.contains(&b'|'),
        [b'\\', escaped, rest @ ..] if !escaped.is_ascii_alphanumeric() => rest,
        [b'\\', ..] | [] => return false,
        [
            b'.' | b'^' | b'$' | b'*' | b'+' | b'?' | b'(' | b')' | b'[' | b'{',
            ..,
        ] => return false,
        [_, rest @ ..] => rest,
    };
    // If the first character of the literal has several bytes, `after_literal` begins with the
    // continuation bytes of this character. They are skipped.
    let next = after_literal
        .iter()
        .find(|&&byte| byte & 0b1100_0000 != 0b1000_0000);
    !matches!(next, Some(b'?' | b'*' | b'{')) && !pattern.contains(&b'|')
}

/// The length of `/^?/` and five flags.
const MAX_REGEX_TEXT_BYTES: usize = 9;
