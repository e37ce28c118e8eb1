//! Turns pipelines into parts of a shape. A stage's name decides how its argument is shown.

use super::bson::{Array, Document, Field, Value};
use super::form::{Bracket, Form, Node, Sequence as Ordered, word};
use super::name::Name;
use super::walk::{MAX_DEPTH, Walk, plain_value};

/// How the shape shows the argument of a stage.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Stage {
    Match,
    Sort,
    Project,
    Facet,
    /// A number or a name. Both are printed as `?`.
    Value,
    Unset,
    Search,
    /// Any argument; only its field names are printed.
    Opaque,
    /// A document. How a value in it is shown depends on the key: see [`Argument`].
    Keyed(KeyedStage),
    Expression,
}

/// Stages whose argument can be a document with keys that the server defines, such as `from`.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum KeyedStage {
    Lookup,
    GraphLookup,
    UnionWith,
    Out,
    Merge,
    Unwind,
    GeoNear,
    Densify,
    Fill,
    SetWindowFields,
    VectorSearch,
}

/// How the shape shows the value of one key in a stage's argument.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Argument {
    Namespace,
    Names,
    Pipeline,
    Filter,
    Keys,
    Value,
    Expression,
    WhenMatched,
    WhenNotMatched,
}

impl<F: Form> Walk<'_, F> {
    /// Turns a pipeline into a part of the shape. `depth` is its nesting level in the command.
    pub(super) fn pipeline(&mut self, pipeline: Array<'_>, depth: u32) -> Node<F> {
        if depth > MAX_DEPTH {
            return Node::cut();
        }
        let mut stages = Ordered::new();
        let mut elements = pipeline.elements();
        while let Some(element) = &self.visit(&mut elements) {
            let stage = self.stage(&element.value, depth + 1);
            stages.item(&stage);
        }
        if elements.is_cut() {
            stages.item(&Node::cut());
        }
        stages.close(Bracket::List)
    }

    fn pipeline_or_value(&mut self, value: &Value<'_>, depth: u32) -> Node<F> {
        match *value {
            Value::Array(pipeline) => self.pipeline(pipeline, depth),
            _ => Node::value(),
        }
    }

    fn stage(&mut self, value: &Value<'_>, depth: u32) -> Node<F> {
        let &Value::Document(stage) = value else {
            return Node::value();
        };
        let mut fields = stage.fields();
        let (Some(field), None) = (self.visit(&mut fields), fields.next()) else {
            return Node::value();
        };
        let argument = self.stage_argument(&field, depth + 1);
        let argument = if is_abbreviated_in_coarse(field.name) {
            argument.with_coarse(word!("{...}"))
        } else {
            argument
        };
        let mut document = Ordered::new();
        document.entry(&self.operator_or_path(field.name), &argument);
        document.close(Bracket::Document)
    }

    fn stage_argument(&mut self, field: &Field<'_>, depth: u32) -> Node<F> {
        if depth > MAX_DEPTH {
            return Node::cut();
        }
        let value = &field.value;
        match (Stage::named(field.name), value) {
            (Stage::Match, _) => self.filter_or_value(value, depth),
            (Stage::Sort, _) => self.keys_or_value(value),
            (Stage::Project, &Value::Document(document)) => self.projection(document, depth),
            (Stage::Facet, &Value::Document(facets)) => {
                self.set_of(facets, Self::path, |walk, field| {
                    walk.pipeline_or_value(&field.value, depth + 1)
                })
            }
            (Stage::Project | Stage::Facet | Stage::Value, _) => Node::value(),
            (Stage::Unset, _) => self.unset(value),
            (Stage::Search, &Value::Document(document)) => self.search(document, depth),
            (Stage::Search, _) => Node::value(),
            (Stage::Opaque, &Value::Document(document)) => {
                self.set_of(document, Self::path, |_, _| Node::value())
            }
            (Stage::Opaque, _) => plain_value(value),
            (Stage::Keyed(stage), &Value::Document(document)) => {
                self.set_of(document, Self::path, |walk, field| {
                    walk.keyed_argument(stage.argument(field.name), &field.value, depth + 1)
                })
            }
            (Stage::Keyed(stage), Value::String(_)) => self.short_form(stage, value, depth),
            (Stage::Keyed(_) | Stage::Expression, _) => self.operand(field, depth),
        }
    }

    /// The part of the shape for a stage's argument that is a string. For some stages, the server
    /// accepts a string in place of a document with one key, and this document is printed. For
    /// example, the argument `"c"` of `$unionWith` is printed as `{coll:c}`.
    fn short_form(&mut self, stage: KeyedStage, value: &Value<'_>, depth: u32) -> Node<F> {
        let (key, word) = match stage {
            KeyedStage::UnionWith | KeyedStage::Out => (b"coll".as_slice(), word!("coll")),
            KeyedStage::Merge => (b"into".as_slice(), word!("into")),
            KeyedStage::Unwind => (b"path".as_slice(), word!("path")),
            KeyedStage::Lookup
            | KeyedStage::GraphLookup
            | KeyedStage::GeoNear
            | KeyedStage::Densify
            | KeyedStage::Fill
            | KeyedStage::SetWindowFields
            | KeyedStage::VectorSearch => return self.expression(value, depth),
        };
        let argument = self.keyed_argument(stage.argument(key), value, depth);
        let mut document = Ordered::new();
        document.entry(&F::word(word), &argument);
        document.close(Bracket::Document)
    }

    fn keyed_argument(&mut self, argument: Argument, value: &Value<'_>, depth: u32) -> Node<F> {
        match argument {
            Argument::Namespace => self.namespace(value),
            Argument::Names => self.names(value),
            Argument::Pipeline => self.pipeline_or_value(value, depth),
            Argument::Filter => self.filter_or_value(value, depth),
            Argument::Keys => self.keys_or_value(value),
            Argument::Value => Node::value(),
            Argument::Expression => self.expression(value, depth),
            Argument::WhenMatched => self.action(
                value,
                &[b"replace", b"keepExisting", b"merge", b"fail"],
                depth,
            ),
            Argument::WhenNotMatched => {
                self.action(value, &[b"insert", b"discard", b"fail"], depth)
            }
        }
    }

    /// The part of the shape for the name of a collection, or for a document that contains the
    /// names of a database and a collection.
    fn namespace(&mut self, value: &Value<'_>) -> Node<F> {
        match *value {
            Value::String(name) => Node::name(Name::verbatim(name)),
            Value::Document(document) => self.set_of(
                document,
                |_, key| F::name(Name::verbatim(key)),
                |_, field| match field.value {
                    Value::String(name) => Node::name(Name::verbatim(name)),
                    _ => Node::value(),
                },
            ),
            _ => Node::value(),
        }
    }

    fn action(&mut self, value: &Value<'_>, words: &[&[u8]], depth: u32) -> Node<F> {
        match value {
            &Value::String(word) if words.contains(&word) => Node::same(F::leaf(word)),
            _ => self.pipeline_or_value(value, depth),
        }
    }

    fn unset(&mut self, value: &Value<'_>) -> Node<F> {
        match value {
            Value::Array(_) => self.names(value),
            &Value::String(name) => {
                let mut names = Ordered::new();
                names.item(&Node::same(self.path(name)));
                names.close(Bracket::List)
            }
            _ => plain_value(value),
        }
    }

    /// The part of the shape for the argument of `$search`, or for a document inside this argument.
    /// Search operators can contain each other at any depth. Values are printed only under the few
    /// keys that hold names of fields or indexes.
    fn search(&mut self, document: Document<'_>, depth: u32) -> Node<F> {
        if depth > MAX_DEPTH {
            return Node::cut();
        }
        self.set_of(document, Self::path, |walk, field| {
            // The value of `like` contains whole documents, whose content is values of users.
            if field.name == b"like" {
                return plain_value(&field.value);
            }
            let holds_names = matches!(field.name, b"index" | b"path" | b"defaultPath");
            if holds_names && is_names(&field.value) {
                walk.names(&field.value)
            } else {
                walk.searched(&field.value, depth + 1)
            }
        })
    }

    fn searched(&mut self, value: &Value<'_>, depth: u32) -> Node<F> {
        match *value {
            Value::Document(document) => self.search(document, depth),
            Value::Array(array) if matches!(array.first(), Some(Value::Document(_))) => {
                if depth > MAX_DEPTH {
                    return Node::cut();
                }
                self.list_of(array, |walk, element| {
                    Some(walk.searched(element, depth + 1))
                })
            }
            Value::Array(_) => Node::word(word!("[?]")),
            _ => Node::value(),
        }
    }
}

impl Stage {
    pub(super) fn named(name: &[u8]) -> Self {
        match name {
            b"$match" => Self::Match,
            b"$sort" => Self::Sort,
            b"$project" => Self::Project,
            b"$facet" => Self::Facet,
            b"$limit" | b"$skip" | b"$count" => Self::Value,
            b"$unset" => Self::Unset,
            b"$search" | b"$searchMeta" => Self::Search,
            b"$lookup" => Self::Keyed(KeyedStage::Lookup),
            b"$graphLookup" => Self::Keyed(KeyedStage::GraphLookup),
            b"$unionWith" => Self::Keyed(KeyedStage::UnionWith),
            b"$out" => Self::Keyed(KeyedStage::Out),
            b"$merge" => Self::Keyed(KeyedStage::Merge),
            b"$unwind" => Self::Keyed(KeyedStage::Unwind),
            b"$geoNear" => Self::Keyed(KeyedStage::GeoNear),
            b"$densify" => Self::Keyed(KeyedStage::Densify),
            b"$fill" => Self::Keyed(KeyedStage::Fill),
            b"$setWindowFields" => Self::Keyed(KeyedStage::SetWindowFields),
            b"$vectorSearch" => Self::Keyed(KeyedStage::VectorSearch),
            name if OPAQUE_STAGES.contains(&name) => Self::Opaque,
            _ => Self::Expression,
        }
    }
}

impl KeyedStage {
    pub(super) fn argument(self, key: &[u8]) -> Argument {
        match (self, key) {
            (Self::Lookup, b"from") => Argument::Namespace,
            (Self::Lookup, b"localField" | b"foreignField" | b"as") => Argument::Names,
            (Self::Lookup, b"pipeline") => Argument::Pipeline,
            (Self::GraphLookup, b"from") => Argument::Namespace,
            (
                Self::GraphLookup,
                b"connectFromField" | b"connectToField" | b"as" | b"depthField",
            ) => Argument::Names,
            (Self::GraphLookup, b"restrictSearchWithMatch") => Argument::Filter,
            (Self::UnionWith, b"coll" | b"db") => Argument::Namespace,
            (Self::UnionWith, b"pipeline") => Argument::Pipeline,
            (Self::Out, b"coll" | b"db") => Argument::Namespace,
            (Self::Out, b"timeseries") => Argument::Value,
            (Self::Merge, b"into") => Argument::Namespace,
            (Self::Merge, b"on") => Argument::Names,
            (Self::Merge, b"whenMatched") => Argument::WhenMatched,
            (Self::Merge, b"whenNotMatched") => Argument::WhenNotMatched,
            (Self::Unwind, b"includeArrayIndex") => Argument::Names,
            (Self::GeoNear, b"query") => Argument::Filter,
            (Self::GeoNear, b"distanceField" | b"includeLocs" | b"key") => Argument::Names,
            (Self::GeoNear, _) => Argument::Value,
            (Self::Densify, b"field" | b"partitionByFields") => Argument::Names,
            (Self::Densify, _) => Argument::Value,
            (Self::Fill, b"partitionByFields") => Argument::Names,
            (Self::Fill | Self::SetWindowFields, b"sortBy") => Argument::Keys,
            (Self::VectorSearch, b"index" | b"path") => Argument::Names,
            (Self::VectorSearch, b"filter") => Argument::Filter,
            (Self::VectorSearch, _) => Argument::Value,
            (
                Self::Lookup
                | Self::GraphLookup
                | Self::UnionWith
                | Self::Out
                | Self::Merge
                | Self::Unwind
                | Self::Fill
                | Self::SetWindowFields,
                _,
            ) => Argument::Expression,
        }
    }
}

/// True for stages with a filter or a search. Such a stage may be in the argument of an outer stage
/// that has no rule of its own. All strings of the filter or search then count as values, even if
/// they begin with `$`, except in `$expr`.
pub(super) fn holds_values(stage: &[u8]) -> bool {
    matches!(
        stage,
        b"$geoNear" | b"$match" | b"$search" | b"$searchBeta" | b"$searchMeta" | b"$vectorSearch"
    )
}

/// True if `{...}` replaces the argument of this stage in the coarse shape. These stages compute or
/// remove fields, but select no documents.
fn is_abbreviated_in_coarse(stage: &[u8]) -> bool {
    matches!(
        stage,
        b"$project"
            | b"$addFields"
            | b"$set"
            | b"$unset"
            | b"$group"
            | b"$replaceRoot"
            | b"$replaceWith"
            | b"$setWindowFields"
            | b"$bucket"
            | b"$bucketAuto"
    )
}

fn is_names(value: &Value<'_>) -> bool {
    let is_string = |element: Field<'_>| matches!(element.value, Value::String(_));
    match value {
        Value::String(_) => true,
        Value::Array(array) => array.first().is_some() && array.elements().all(is_string),
        _ => false,
    }
}

const OPAQUE_STAGES: [&[u8]; 16] = [
    b"$changeStream",
    b"$changeStreamSplitLargeEvent",
    b"$currentOp",
    b"$collStats",
    b"$indexStats",
    b"$planCacheStats",
    b"$queryStats",
    b"$querySettings",
    b"$listSessions",
    b"$listLocalSessions",
    b"$listSampledQueries",
    b"$listSearchIndexes",
    b"$listClusterCatalog",
    b"$shardedDataDistribution",
    b"$sample",
    b"$documents",
];
