//! Names of kernels, the keys of coefficients in profiles, and their fallbacks.

use crate::Precision;

/// Suffix of the names of kernels that also multiply split long rows. A profile without such a
/// kernel predicts with the kernel of the same name without the suffix.
#[doc(hidden)]
pub const SPLIT_ROWS: &str = ".split";

/// Suffix of the names of kernels that multiply tiles and blocks of one value; the kernels of the
/// same name without the suffix are their fallback.
const SAME: &str = ".same";

/// Fallback kernels for one that was not measured, the nearest first: without split long rows and,
/// if values take fewer bytes or none, with unchanged values, because they differ only in bytes.
#[doc(hidden)]
pub fn fallback_kernels(kernel: &str) -> impl Iterator<Item = String> {
    let wide = Precision::ALL.iter().find_map(|precision| {
        let (order, rest) = kernel.split_once(&format!(".{precision}"))?;
        Some(format!("{order}{rest}"))
    });
    let whole = |kernel: &str| kernel.strip_suffix(SPLIT_ROWS).map(str::to_owned);
    let own = whole(kernel).or_else(|| kernel.strip_suffix(SAME).map(str::to_owned));
    let wide_whole = wide.as_deref().and_then(whole);
    own.into_iter().chain(wide).chain(wide_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallbacks_split_no_rows_and_have_whole_values() {
        let of = |kernel: &str| fallback_kernels(kernel).collect::<Vec<_>>();
        assert_eq!(of("psell.bf16.v4.split"), ["psell.bf16.v4", "psell.v4.split", "psell.v4"]);
        assert_eq!(of("tiles.same"), ["tiles"]);
        assert!(of("psell.dict").is_empty());
    }
}
