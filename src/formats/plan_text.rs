//! Spelling of plans: `name`, or `name(key:value,flag,...)`.

use super::{FormatKind, Plan};
use crate::Error;
use crate::error::suggestion;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::str::FromStr;

/// Arguments between the parentheses, consumed one by one by the parser of the format.
#[derive(Debug)]
pub(crate) struct PlanArgs<'a> {
    text: &'a str,
    name: &'a str,
    /// Keys and values that are not consumed yet.
    left: Vec<(&'a str, Option<&'a str>)>,
    /// All requested keys, for the error message about an unknown key.
    asked: Vec<&'static str>,
}

impl<'a> PlanArgs<'a> {
    /// Splits `name(key:value,flag)`.
    pub(crate) fn new(text: &'a str) -> Result<Self, Error> {
        let trimmed = text.trim();
        let fail = |message: &str| {
            Err(Error::PlanText { text: text.to_owned(), message: message.to_owned() })
        };
        let (name, inside) = match trimmed.split_once('(') {
            None => (trimmed, None),
            Some((name, rest)) => match rest.strip_suffix(')') {
                Some(inside) => (name.trim_end(), Some(inside)),
                None => return fail("the closing parenthesis is missing"),
            },
        };
        let mut left: Vec<(&str, Option<&str>)> = Vec::new();
        for parameter in inside.into_iter().flat_map(|inside| inside.split(',')) {
            let (key, value) = match parameter.split_once(':') {
                Some((key, value)) => (key.trim(), Some(value.trim())),
                None => (parameter.trim(), None),
            };
            if key.is_empty() {
                return fail("there is an empty parameter; write name(key:value,...)");
            }
            if left.iter().any(|(known, _)| *known == key) {
                return fail(&format!("`{key}` is given twice"));
            }
            left.push((key, value));
        }
        Ok(Self { text, name, left, asked: Vec::new() })
    }

    /// Name of the format.
    pub(crate) fn name(&self) -> &'a str {
        self.name
    }

    /// Consumes the flag `key`. True if it is given.
    pub(crate) fn flag(&mut self, key: &'static str) -> Result<bool, Error> {
        match self.take(key) {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(value)) => {
                Err(self.error(format!("`{key}` takes no value, but has `{value}`")))
            }
        }
    }

    /// Consumes `key:value`. None if it is not given.
    pub(crate) fn value(&mut self, key: &'static str) -> Result<Option<&'a str>, Error> {
        match self.take(key) {
            None => Ok(None),
            Some(Some(value)) => Ok(Some(value)),
            Some(None) => Err(self.error(format!("`{key}` needs a value: {key}:VALUE"))),
        }
    }

    /// Consumes `key:number`, a whole number of at least 1. None if it is not given.
    pub(crate) fn number(&mut self, key: &'static str) -> Result<Option<u32>, Error> {
        let value = self.value(key)?;
        value.map(|v| self.to_number(key, v)).transpose()
    }

    /// Parses a whole number of at least 1.
    pub(crate) fn to_number(&self, key: &str, value: &str) -> Result<u32, Error> {
        match u32::from_str(value) {
            Ok(n) if n > 0 && n < u32::MAX => Ok(n),
            _ => Err(self.error(format!(
                "`{key}` must be a whole number from 1 to {}, not `{value}`",
                u32::MAX - 1
            ))),
        }
    }

    /// Consumes `key:word`, one of `words`. None if it is not given.
    pub(crate) fn word<W: Copy>(
        &mut self,
        key: &'static str,
        words: &[(&'static str, W)],
    ) -> Result<Option<W>, Error> {
        let value = self.value(key)?;
        value.map(|v| self.to_word(key, v, words)).transpose()
    }

    /// Parses one of `words`.
    pub(crate) fn to_word<W: Copy>(
        &self,
        key: &str,
        value: &str,
        words: &[(&'static str, W)],
    ) -> Result<W, Error> {
        let known = || words.iter().map(|w| w.0);
        words.iter().find(|w| w.0 == value).map(|w| w.1).ok_or_else(|| {
            let list = known().collect::<Vec<_>>().join(", ");
            self.error(format!(
                "`{key}` has no `{value}`{}; it may be {list}",
                suggestion(value, known())
            ))
        })
    }

    /// Returns an error about this plan.
    pub(crate) fn error(&self, message: String) -> Error {
        Error::PlanText { text: self.text.to_owned(), message }
    }

    /// Returns the error for an unknown format name.
    pub(super) fn unknown_format(&mut self) -> Error {
        self.left.clear();
        let names = || FormatKind::ALL.iter().map(|k| k.name());
        let known = names().collect::<Vec<_>>().join(", ");
        self.error(format!(
            "no format is called `{}`{}; there are {known}",
            self.name,
            suggestion(self.name, names())
        ))
    }

    /// Returns an error if an argument was not consumed.
    pub(super) fn finish(self) -> Result<(), Error> {
        let Some((key, _)) = self.left.first() else { return Ok(()) };
        let hint = suggestion(key, self.asked.iter().copied());
        let known = match self.asked.as_slice() {
            [] => "it has no parameters".to_owned(),
            asked => format!("it has {}", asked.join(", ")),
        };
        Err(self.error(format!("`{}` has no parameter `{key}`{hint}; {known}", self.name)))
    }

    fn take(&mut self, key: &'static str) -> Option<Option<&'a str>> {
        self.asked.push(key);
        let at = self.left.iter().position(|(known, _)| *known == key)?;
        Some(self.left.remove(at).1)
    }
}

impl Display for FormatKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Plan {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut args = PlanArgs::new(text)?;
        let name = args.name();
        let plan = Self::parse(name, &mut args).unwrap_or_else(|| Err(args.unknown_format()))?;
        args.finish()?;
        Ok(plan)
    }
}

impl Serialize for Plan {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Plan {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use crate::formats::{FormatKind, Plan};
    use proptest::prelude::*;

    #[test]
    fn every_example_is_its_own_spelling() {
        for text in FormatKind::ALL.iter().flat_map(|k| k.examples()) {
            assert_eq!(text.parse::<Plan>().unwrap().to_string(), *text);
        }
    }

    #[test]
    fn mistakes_are_named_with_the_nearest_spelling() {
        for (text, expected) in [
            ("sel(c:32)", "did you mean `sell`?"),
            ("", "no format is called ``"),
            ("sell(c:32", "closing parenthesis"),
            ("sell(c:32,,sigma:1)", "empty parameter"),
            ("sell(c:0)", "whole number from 1"),
            ("sell(c:32,c:16)", "`c` is given twice"),
            ("sell(sigm:512)", "did you mean `sigma`?"),
            ("hyb(width:bell-garlnd)", "did you mean `bell-garland`?"),
            ("ell(lengths:3)", "takes no value"),
            ("jds(sections)", "needs a value"),
            ("coo(x:1)", "it has atomic"),
            ("csr(vector:3)", "2, 4, 8, 16"),
            ("tiles(cols:65537)", "1 to 65536 or auto"),
            ("tiles(chunk:31)", "32 to 16384 or auto"),
            ("tiles(values:plane)", "did you mean `plain`?"),
            ("blocked(kib:257)", "1 to 256, in KiB"),
            ("blocked(hot:0)", "whole number from 1"),
            ("blocked(kib:192,hot:192)", "not both"),
            ("blocked(window:24576)", "it has kib, hot, values"),
        ] {
            let message = text.parse::<Plan>().unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_parses_prints_back(
            format in prop::option::of(prop::sample::select(FormatKind::ALL)),
            rest in "[a-z0-9:,() -]{0,40}",
        ) {
            let text = format.map_or(String::new(), |kind| kind.to_string()) + &rest;
            if let Ok(plan) = text.parse::<Plan>() {
                prop_assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan);
            }
        }
    }
}
