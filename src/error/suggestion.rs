//! Corrections of misspelt words.

/// ` (did you mean `NEAREST`?)` if one of `known` is close enough to `text` to be a misspelling.
pub(crate) fn suggestion<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    // A misspelling has one letter wrong, missing, doubled or swapped; in a long word two or three.
    let slips = |word: &str| strsim::damerau_levenshtein(text, word);
    known
        .into_iter()
        .filter(|word| slips(word) <= 1 + word.len() / 5)
        .min_by_key(|word| slips(word))
        .map(|word| format!(" (did you mean `{word}`?)"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_corrected_and_nonsense_is_not() {
        assert_eq!(suggestion("sel", ["csr", "sell", "ell"]), " (did you mean `sell`?)");
        assert_eq!(suggestion("xyzzy", ["csr", "sell"]), "");
    }
}
