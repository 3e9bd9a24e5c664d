//! Text from files and the command line in messages.

use std::borrow::Cow;

/// Returns a text with its control characters escaped, so that it is one line and changes nothing
/// on a terminal.
///
/// For names and texts from outside the program: file names, members of archives, contents of
/// files.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if c.is_control() {
            escaped.extend(c.escape_debug());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use std::path::PathBuf;

    #[test]
    fn control_characters_are_escaped_and_others_are_not() {
        assert!(matches!(printable("σ \"a\" \\ b.mtx"), Cow::Borrowed("σ \"a\" \\ b.mtx")));
        let text = "a\u{1b}[31m\nb\r\t\u{7f}\u{9b}\0";
        assert_eq!(printable(text), "a\\u{1b}[31m\\nb\\r\\t\\u{7f}\\u{9b}\\0");
    }

    #[test]
    fn names_and_texts_from_outside_are_one_harmless_line() {
        let name = "a\u{1b}[2J\n.mtx".to_owned();
        let path = PathBuf::from(&name);
        let missing = || std::io::ErrorKind::NotFound.into();
        let errors = [
            Error::io("open", &path, missing()),
            Error::Market { path, line: Some(1), message: name.clone() },
            Error::PlanText { text: name.clone(), message: name.clone() },
            Error::GalleryText { text: name.clone(), message: name.clone() },
            Error::DeviceUnavailable { device: name.clone(), reason: name.clone() },
            Error::Profile { origin: name.clone(), message: name },
        ];
        for message in errors.map(|error| error.to_string()) {
            assert!(message.contains("\\u{1b}[2J\\n.mtx"), "{message}");
            assert!(!message.contains(char::is_control), "{message}");
        }
    }
}
