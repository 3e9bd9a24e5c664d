//! Text from files and the command line in messages.

use std::borrow::Cow;

/// Returns a text with its control and format characters escaped, so that it is one line, changes
/// nothing on a terminal, and is shown in its order.
///
/// For names and texts from outside the program: file names, members of archives, contents of
/// files.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unprintable(c) {
            escaped.extend(c.escape_debug());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// True for control characters, and for those of the categories Cf, Zl and Zp of Unicode 16: they
/// have no width, or change the order of the text or its lines.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use std::path::PathBuf;

    #[test]
    fn control_characters_are_escaped_and_others_are_not() {
        for plain in ["σ \"a\" \\ b.mtx", "行列　é e\u{301} €"] {
            assert!(matches!(printable(plain), Cow::Borrowed(text) if text == plain));
        }
        for c in ['\u{200b}', '\u{200f}', '\u{2028}', '\u{202e}', '\u{2066}', '\u{feff}'] {
            assert_eq!(printable(&format!("a{c}b")), format!("a{}b", c.escape_unicode()));
        }
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
