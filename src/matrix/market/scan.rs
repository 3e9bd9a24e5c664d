//! Lines, words and numbers.
//!
//! Each kind of number has two parsers: the `quick_` functions parse the usual spellings at full
//! speed and return `None` for anything else, which is then parsed by the function that supports
//! every spelling and every error.

use super::excerpt;
use crate::Scalar;
use crate::ScalarKind::{F32, F64};

/// True if a byte separates words within a line; `\r` is included so that lines may end in `\r\n`.
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// First position at or after `pos` that is not blank.
#[inline]
pub(super) fn skip_blanks(text: &[u8], mut pos: usize) -> usize {
    while text.get(pos).is_some_and(|&byte| is_blank(byte)) {
        pos += 1;
    }
    pos
}

/// End of the line that holds `pos`: the position of its `\n`, or the end of the text.
pub(super) fn line_end(text: &[u8], pos: usize) -> usize {
    text[pos..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |n| pos + n)
}

/// First word of the next line that is neither blank nor a comment, before `end`; `pos` is the
/// beginning of a line.
#[inline]
pub(super) fn next_line(text: &[u8], mut pos: usize, end: usize) -> Option<usize> {
    while pos < end {
        pos = skip_blanks(text, pos);
        match text.get(pos) {
            None => return None,
            Some(b'\n') => pos += 1,
            Some(b'%') => pos = line_end(text, pos) + 1,
            Some(_) => return Some(pos),
        }
    }
    None
}

/// The words of a line.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| is_blank(byte)).filter(|word| !word.is_empty())
}

/// Parses at most 8 digits at `pos`. Returns the number and the count of digits, or `None` near the
/// end of the text.
///
/// Reads eight bytes as one word, because a loop over digits mispredicts its end on almost every
/// random index.
#[inline]
fn eight_digits(text: &[u8], pos: usize) -> Option<(u64, usize)> {
    let bytes = text.get(pos..pos + 8)?.try_into().ok()?;
    // Digits become 0..=9. Adding 0x76 carries 10 and more into the top bit of their byte; a carry
    // out of a byte can only disturb bytes after it, and only the first byte that is no digit
    // matters.
    let word = u64::from_le_bytes(bytes) ^ 0x3030_3030_3030_3030;
    let others = (word.wrapping_add(0x7676_7676_7676_7676) | word) & 0x8080_8080_8080_8080;
    let count = others.trailing_zeros() as usize / 8;
    if count == 0 {
        return Some((0, 0));
    }
    // The number is moved to the end of the eight bytes, after leading zeros, and combined: pairs,
    // fours, eight.
    let digits = word << (64 - 8 * count);
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    let eight = fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff;
    Some((eight, count))
}

/// Parses at most 16 digits at `pos`. Returns the number and the position after it.
#[inline]
fn quick_digits(text: &[u8], pos: usize) -> Option<(u64, usize)> {
    /// Weight of the first eight digits, by the number of digits that follow.
    const SCALE: [u64; 9] =
        [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
    match eight_digits(text, pos)? {
        (_, 0) => None,
        (high, 8) => {
            let (low, count) = eight_digits(text, pos + 8)?;
            Some((high * SCALE[count] + low, pos + 8 + count))
        }
        (number, count) => Some((number, pos + count)),
    }
}

/// Parses an index below `size`, written from 1 and returned from 0. Also returns the first word
/// after it on its line.
#[inline]
pub(super) fn quick_index(text: &[u8], pos: usize, size: usize) -> Option<(u32, usize)> {
    let (number, after) = quick_digits(text, pos)?;
    let index = number.wrapping_sub(1);
    (index < size as u64 && text.get(after).is_none_or(|&byte| is_blank(byte) || byte == b'\n'))
        .then(|| (index as u32, skip_blanks(text, after)))
}

/// Parses a finite real number. Returns it and the position after it.
#[inline]
pub(super) fn quick_real<T: Scalar>(text: &[u8], pos: usize) -> Option<(T, usize)> {
    let rest = &text[pos..];
    // Widening and narrowing again is exact; parsing an `f32` as an `f64` would round twice.
    let (value, len) = match T::KIND {
        F32 => {
            fast_float2::parse_partial::<f32, _>(rest).map(|(v, len)| (f64::from(v), len)).ok()?
        }
        F64 => fast_float2::parse_partial::<f64, _>(rest).ok()?,
    };
    value.is_finite().then(|| (T::from_f64(value), pos + len))
}

/// Parses an integer of at most 15 digits, which are exact in an `f64`. Returns it and the position
/// after it.
#[inline]
pub(super) fn quick_integer<T: Scalar>(text: &[u8], pos: usize) -> Option<(T, usize)> {
    let negative = text.get(pos) == Some(&b'-');
    let start = pos + usize::from(negative);
    let (number, end) = quick_digits(text, start)?;
    let magnitude = number as f64;
    (end - start <= 15).then(|| (T::from_f64(if negative { -magnitude } else { magnitude }), end))
}

/// Parses a whole number without a minus sign; numbers that are too large are saturated.
pub(super) fn count(word: &[u8]) -> Option<u64> {
    let digits = word.strip_prefix(b"+").unwrap_or(word);
    let all_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    all_digits.then(|| {
        digits
            .iter()
            .fold(0u64, |n, digit| n.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
    })
}

/// Parses an index of `axis` (`row` or `column`) below `size`, written from 1 and returned from 0.
pub(super) fn index(axis: &str, word: Option<&[u8]>, size: usize) -> Result<u32, String> {
    let Some(word) = word else { return Err(format!("the {axis} index is missing")) };
    match count(word) {
        None => {
            Err(format!("{} is not a {axis} index: a whole number from 1 to {size}", excerpt(word)))
        }
        Some(0) => Err(format!("the {axis} index is 0, but indices count from 1 (to {size})")),
        Some(n) if n > size as u64 => {
            Err(format!("{axis} {} is out of range: there are only {size}", word.escape_ascii()))
        }
        Some(n) => Ok((n - 1) as u32),
    }
}

/// Parses a real number in any spelling.
pub(super) fn real<T: Scalar>(word: &[u8]) -> Result<T, String> {
    let parse = |word: &[u8]| match T::KIND {
        F32 => fast_float2::parse::<f32, _>(word).map(f64::from).ok(),
        F64 => fast_float2::parse::<f64, _>(word).ok(),
    };
    let fortran = || {
        let with_e = word.iter().map(|byte| if matches!(byte, b'd' | b'D') { b'e' } else { *byte });
        parse(&with_e.collect::<Vec<u8>>())
    };
    let value =
        parse(word).or_else(fortran).ok_or_else(|| format!("{} is not a number", excerpt(word)))?;
    if value.is_infinite() && word.iter().any(u8::is_ascii_digit) {
        let wider = if T::KIND == F32 { "; read the file as f64" } else { "" };
        return Err(format!("{} is too large for {}{wider}", excerpt(word), T::KIND));
    }
    Ok(T::from_f64(value))
}

/// Parses an integer of any length, rounded to the nearest number of type `T`.
pub(super) fn integer<T: Scalar>(word: &[u8]) -> Result<T, String> {
    let unsigned = word.strip_prefix(b"-").or(word.strip_prefix(b"+")).unwrap_or(word);
    if unsigned.is_empty() || !unsigned.iter().all(u8::is_ascii_digit) {
        return Err(format!("{} is not an integer, which the banner promises", excerpt(word)));
    }
    real(word)
}
