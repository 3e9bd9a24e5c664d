//! Specification of a gallery matrix, as text and as data.

use super::registry::{ENTRIES, RANDOM, proportional};
use super::structure::RandomStructure;
use super::{Entry, MatrixSize, Values};
use crate::error::suggestion;
use crate::matrix::{CsrMatrix, MAX_DIMENSION};
use crate::memory;
use crate::{Error, Scalar};
use std::fmt::{Display, Formatter};
use std::str::FromStr;

/// Maximum number of matrices that ranges may stand for: more are probably a mistake.
const MAX_IN_RANGES: u128 = 10_000;

/// Specification of a gallery matrix: generator, sizes, values and seed.
///
/// Its spelling is `NAME[,key=value...]`, optionally after `gallery:`. Keys are the generator's
/// [parameters](Entry::parameters), `values` (`random`, `pattern`, `few` or `laplacian`) and
/// `seed`; defaults are those of the full-size suite, or drawn from the seed of `random`. Numbers
/// may end in `k` (thousand) or `M` (million); a range of them stands for
/// [several](Self::parse_all) matrices.
///
/// ```
/// # use sparseop::matrix::gallery::Spec;
/// let spec: Spec = "gallery:banded,rows=10k,values=few,seed=7".parse()?;
/// let a = spec.generate::<f32>()?;
/// assert_eq!((a.nrows(), a.ncols()), (10_000, 10_000));
/// assert_eq!(spec.to_string(), "banded,rows=10k,values=few,seed=7");
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub(super) entry: &'static Entry,
    /// Sizes, one for every parameter, in order.
    pub(super) sizes: Vec<usize>,
    /// Kind of values. None stands for that of the generator.
    pub(super) values: Option<Values>,
    pub(super) seed: u64,
}

impl Spec {
    /// Default seed.
    #[doc(hidden)]
    pub const DEFAULT_SEED: u64 = 1;

    /// Prefix of `NAME[,key=value...]` in places that also accept file names.
    #[doc(hidden)]
    pub const PREFIX: &'static str = "gallery:";

    /// Generator of the matrix.
    #[doc(hidden)]
    pub fn entry(&self) -> &'static Entry {
        self.entry
    }

    /// Sizes, one for every [parameter](Entry::parameters), in that order.
    #[doc(hidden)]
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Kind of values of the entries.
    #[doc(hidden)]
    pub fn values(&self) -> Values {
        self.values.or_else(|| Some(self.drawn()?.values)).unwrap_or_default()
    }

    /// Description of the structure: that of the generator or, for `random`, the one drawn from the
    /// seed.
    #[doc(hidden)]
    pub fn structure(&self) -> String {
        self.drawn().map_or_else(
            || self.entry.structure.to_owned(),
            |drawn| format!("{drawn}; values: {}", self.values().name()),
        )
    }

    /// Structure drawn from the seed of `random`. None for other generators.
    fn drawn(&self) -> Option<RandomStructure> {
        (self.entry.name == RANDOM).then(|| RandomStructure::draw(self.sizes[0], self.seed))
    }

    /// Seed of all random numbers.
    #[doc(hidden)]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the same matrix with other values in the same places.
    #[doc(hidden)]
    pub fn with_values(self, values: Values) -> Self {
        // The generator's own values are not spelled out, so that equal matrices have equal names.
        let asked = values != Values::default() || self.entry.name == RANDOM;
        Self { values: asked.then_some(values), ..self }
    }

    /// Returns the same kind of matrix with other random numbers.
    #[doc(hidden)]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Returns the same kind of matrix with about `nnz` entries: as near as the first size gets,
    /// the sizes that follow it in proportion. `small` remains unchanged.
    #[doc(hidden)]
    pub fn scaled_to(&self, nnz: usize) -> Self {
        if !self.entry.scales {
            return self.clone();
        }
        let (mut low, mut high) = (1, self.entry.parameters[0].max);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.resized(middle).shape().nnz < nnz {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let (below, above) = (self.resized((low - 1).max(1)), self.resized(low));
        let miss = |spec: &Self| spec.shape().nnz.abs_diff(nnz);
        if miss(&below) < miss(&above) { below } else { above }
    }

    /// Returns the specification with another first size, and the sizes that follow it in their
    /// present proportion.
    fn resized(&self, first: usize) -> Self {
        let mut sizes = self.entry.sizes(first);
        for ((size, parameter), &present) in
            sizes.iter_mut().zip(self.entry.parameters).zip(&self.sizes).skip(1)
        {
            if !parameter.follows {
                *size = present;
            } else if self.sizes[0] > 0 {
                *size = proportional(present, first, self.sizes[0]);
            }
        }
        Self { sizes, ..self.clone() }
    }

    /// Parses a text in which numbers may be ranges, and returns all specifications that it stands
    /// for: `seed=1..4` is 1, 2 and 3, `seed=1..=4` includes 4. Of several ranges the last one
    /// varies fastest.
    ///
    /// ```
    /// # use sparseop::matrix::gallery::Spec;
    /// let specs = Spec::parse_all("random,seed=1..=40")?;
    /// assert_eq!((specs.len(), specs[39].seed()), (40, 40));
    /// # Ok::<(), sparseop::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::GalleryText`] if the text is no specification, a range is empty, or they stand for
    /// more than 10 000 matrices.
    #[doc(hidden)]
    pub fn parse_all(text: &str) -> Result<Vec<Self>, Error> {
        let texts = expand(text)
            .map_err(|message| Error::GalleryText { text: text.to_owned(), message })?;
        texts.iter().map(|text| text.parse()).collect()
    }

    /// Rows, columns and expected nonzeros, without generating anything.
    #[doc(hidden)]
    pub fn shape(&self) -> MatrixSize {
        let shape = (self.entry.shape)(&self.sizes, self.seed);
        MatrixSize { nnz: shape.nnz.min(shape.nrows.saturating_mul(shape.ncols)), ..shape }
    }

    /// Generates the matrix, on all threads of the current rayon pool: columns ascend in every row
    /// without repetition. The result depends only on the specification, never on the number of
    /// threads.
    ///
    /// Takes time linear in the number of entries and, at its peak, about twice the memory of the
    /// result.
    ///
    /// # Errors
    ///
    /// Before anything is allocated: [`Error::GalleryText`] if a dimension exceeds
    /// [`MAX_DIMENSION`], or if the matrix would take more memory than the process may use.
    /// [`Error::HostMemory`] if the system refuses memory.
    pub fn generate<T: Scalar>(&self) -> Result<CsrMatrix<T>, Error> {
        T::generate(self)
    }

    pub(crate) fn generate_impl<T: Scalar>(&self) -> Result<CsrMatrix<T>, Error> {
        let shape = self.shape();
        let key = self.entry.parameters[0].key;
        if shape.nrows.max(shape.ncols) > MAX_DIMENSION {
            let message = format!(
                "it would have more than {MAX_DIMENSION} rows or columns, which 32-bit indices \
                 cannot number; choose a smaller `{key}`"
            );
            return Err(Error::GalleryText { text: self.to_string(), message });
        }
        // Columns are stored twice, by block and joined, or as the edges of a graph; values and row
        // offsets are added.
        let per_entry = 12 + T::KIND.size();
        let bytes =
            shape.nnz.saturating_mul(per_entry).saturating_add(shape.nrows.saturating_mul(16));
        let memory = memory::limit();
        if bytes as u64 > memory {
            let (gib, limit) = (bytes >> 30, memory >> 30);
            let message = format!(
                "its {} entries would take {gib} GiB to generate, and this process may use \
                 {limit} GiB; choose a smaller `{key}`",
                shape.nnz
            );
            return Err(Error::GalleryText { text: self.to_string(), message });
        }
        let pattern = (self.entry.pattern)(&self.sizes, self.seed)?;
        let values = self.values().generate(&pattern, self.seed)?;
        CsrMatrix::try_new(shape.nrows, shape.ncols, pattern.row_ptr, pattern.col_idx, values)
    }
}

impl Display for Spec {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.entry.name)?;
        let mut usual = self.entry.sizes(self.sizes[0]);
        usual[0] = self.entry.parameters[0].default;
        for ((parameter, &size), usual) in self.entry.parameters.iter().zip(&self.sizes).zip(usual)
        {
            if size != usual {
                write!(f, ",{}={}", parameter.key, short(size))?;
            }
        }
        if let Some(values) = self.values {
            write!(f, ",values={}", values.name())?;
        }
        if self.seed != Self::DEFAULT_SEED {
            write!(f, ",seed={}", self.seed)?;
        }
        Ok(())
    }
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|message| Error::GalleryText { text: text.to_owned(), message })
    }
}

fn parse(text: &str) -> Result<Spec, String> {
    let text = text.trim();
    let mut parts = text.strip_prefix(Spec::PREFIX).unwrap_or(text).split(',').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let entry = ENTRIES.iter().find(|e| e.name == name).ok_or_else(|| {
        let names = ENTRIES.each_ref().map(|e| e.name);
        format!(
            "there is no generator `{name}`{}; there are {}",
            suggestion(name, names),
            names.join(", ")
        )
    })?;
    let mut spec = entry.spec();
    let mut given = vec![None; entry.parameters.len()];
    let mut found = Vec::new();
    for part in parts {
        let (key, value) =
            part.split_once('=').ok_or_else(|| format!("`{part}` is not of the form key=value"))?;
        if found.contains(&key) {
            return Err(format!("`{key}` is given twice"));
        }
        found.push(key);
        match (key, entry.parameters.iter().position(|p| p.key == key)) {
            ("values", _) => spec = spec.with_values(parse_values(value)?),
            ("seed", _) => spec.seed = parse_number(key, value, u64::MAX)?,
            (_, Some(i)) => {
                let max = entry.parameters[i].max as u64;
                given[i] = Some(parse_number(key, value, max)? as usize);
            }
            (_, None) => return Err(unknown_key(entry, key)),
        }
    }
    // The first size, which the missing sizes follow, is known only here.
    let usual = entry.sizes(given[0].unwrap_or(spec.sizes[0]));
    spec.sizes =
        given.into_iter().zip(usual).map(|(given, usual)| given.unwrap_or(usual)).collect();
    Ok(spec)
}

/// Expands the ranges of a text to all texts that it stands for.
fn expand(text: &str) -> Result<Vec<String>, String> {
    let mut texts = vec![String::new()];
    for (i, part) in text.split(',').enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let Some((key, (from, to))) =
            part.split_once('=').and_then(|(key, value)| Some((key, value.split_once("..")?)))
        else {
            texts.iter_mut().for_each(|text| text.extend([comma, part]));
            continue;
        };
        let number = |text: &str| parse_number(key.trim(), text.trim(), u64::MAX);
        let (first, end) = match to.strip_prefix('=') {
            Some(last) => (number(from)?, u128::from(number(last)?) + 1),
            None => (number(from)?, u128::from(number(to)?)),
        };
        let count = end.saturating_sub(u128::from(first));
        if count == 0 {
            let rule = "`a..b` leaves b out, `a..=b` has it";
            return Err(format!("`{part}` is an empty range: {rule}; choose a larger end"));
        }
        if count * texts.len() as u128 > MAX_IN_RANGES {
            return Err(format!(
                "`{part}` makes more than {MAX_IN_RANGES} matrices; choose a shorter range"
            ));
        }
        let numbers = || u128::from(first)..end;
        texts = texts
            .iter()
            .flat_map(|text| numbers().map(move |n| format!("{text}{comma}{key}={n}")))
            .collect();
    }
    Ok(texts)
}

fn unknown_key(entry: &Entry, key: &str) -> String {
    let known: Vec<&str> =
        entry.parameters.iter().map(|p| p.key).chain(["values", "seed"]).collect();
    let nearest = suggestion(key, known.iter().copied());
    format!("`{}` has no parameter `{key}`{nearest}; it takes {}", entry.name, known.join(", "))
}

fn parse_values(text: &str) -> Result<Values, String> {
    Values::ALL.into_iter().find(|v| v.name() == text).ok_or_else(|| {
        let names = Values::ALL.map(Values::name);
        format!(
            "there are no values `{text}`{}; there are {}",
            suggestion(text, names),
            names.join(", ")
        )
    })
}

/// Parses a whole number of at most `max`, optionally in thousands (`k`) or millions (`M`).
fn parse_number(key: &str, text: &str, max: u64) -> Result<u64, String> {
    let units = [('k', 1000), ('M', 1_000_000)];
    let (digits, unit) = units
        .into_iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))
        .unwrap_or((text, 1));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!(
            "`{key}={text}` is not a whole number; write it like 300000, 300k or 2M"
        ));
    }
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|&n| n <= max);
    number.ok_or_else(|| format!("`{key}={text}` is too large; at most {max} is possible"))
}

/// Returns the shortest spelling that [`parse_number`] accepts: `300k`, `2M`, `2048`.
fn short(number: usize) -> String {
    match number {
        n if n > 0 && n % 1_000_000 == 0 => format!("{}M", n / 1_000_000),
        n if n > 0 && n % 1000 == 0 => format!("{}k", n / 1000),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Spec {
        text.parse().unwrap()
    }

    fn message(text: &str) -> String {
        text.parse::<Spec>().unwrap_err().to_string()
    }

    #[test]
    fn text_and_back() {
        for (text, short) in [
            ("poisson2d", "poisson2d"),
            ("gallery:poisson2d,n=2048", "poisson2d"),
            (" gallery:road , n=30 ", "road,n=30"),
            ("femrandom,nodes=300000,seed=1,values=random", "femrandom"),
            ("lp,columns=2M,rows=4k", "lp,rows=4k,columns=2M"),
            ("circuit,rows=300k", "circuit,rows=300k"),
            ("circuit,length=40k,rows=300k", "circuit,rows=300k"),
            ("circuit,dense=0,length=7", "circuit,dense=0,length=7"),
            (
                "dense,n=0,values=few,seed=18446744073709551615",
                "dense,n=0,values=few,seed=18446744073709551615",
            ),
        ] {
            assert_eq!(spec(text).to_string(), short);
            assert_eq!(spec(short), spec(text));
        }
    }

    #[test]
    fn sizes_follow_the_first_unless_given() {
        assert_eq!(spec("circuit,rows=300k").sizes(), [300_000, 5, 40_000]);
        assert_eq!(spec("circuit,length=9,rows=300k").sizes(), [300_000, 5, 9]);
        assert_eq!(spec("lp,rows=0").sizes(), [0, 0]);
        assert_eq!(spec("circuit,rows=1000,length=500").resized(4000).sizes(), [4000, 5, 2000]);
    }

    #[test]
    fn errors_name_the_slip_and_the_nearest_spelling() {
        for (text, parts) in [
            ("", &["there is no generator ``", "poisson2d, poisson3d"][..]),
            ("possion2d", &["`possion2d` is not a gallery matrix", "did you mean `poisson2d`?"]),
            (
                "gallery:banded,row=5",
                &["no parameter `row` (did you mean `rows`?)", "it takes rows, values, seed"],
            ),
            ("banded,rows", &["`rows` is not of the form key=value"]),
            ("banded,", &["`` is not of the form key=value"]),
            ("banded,rows=1,rows=2", &["`rows` is given twice"]),
            ("banded,rows=-1", &["`rows=-1` is not a whole number", "300k"]),
            ("banded,rows=k", &["`rows=k` is not a whole number"]),
            ("banded,rows=1e6", &["not a whole number"]),
            ("banded,rows=5000M", &["`rows=5000M` is too large", "at most 4294967294"]),
            ("rmat,scale=32", &["at most 31"]),
            ("small,values=patern", &["no values `patern` (did you mean `pattern`?)"]),
        ] {
            for part in parts {
                assert!(message(text).contains(part), "{text}: {}", message(text));
            }
        }
    }

    #[test]
    fn ranges_stand_for_every_number_in_them() {
        let names = |text| -> Vec<String> {
            Spec::parse_all(text).unwrap().iter().map(Spec::to_string).collect()
        };
        assert_eq!(names("gallery:banded, seed=2..4"), ["banded,seed=2", "banded,seed=3"]);
        assert_eq!(
            names("banded,rows=5..=6,seed=7..=8"),
            [
                "banded,rows=5,seed=7",
                "banded,rows=5,seed=8",
                "banded,rows=6,seed=7",
                "banded,rows=6,seed=8"
            ]
        );
        assert_eq!(names("dense,n=999..=1k"), ["dense,n=999", "dense,n=1k"]);
        let last = format!("banded,seed={0}..={0}", u64::MAX);
        assert_eq!(Spec::parse_all(&last).unwrap()[0].seed(), u64::MAX);
        assert_eq!(names("small"), ["small"]);
        for (text, part) in [
            ("banded,seed=3..3", "`seed=3..3` is an empty range: `a..b` leaves b out"),
            ("banded,seed=4..=3", "empty range"),
            ("banded,seed=1..=x", "`seed=x` is not a whole number"),
            ("banded,seed=..3", "`seed=` is not a whole number"),
            ("banded,seed=0..200,rows=1..=100", "`rows=1..=100` makes more than 10000 matrices"),
            ("banded,seed=0..18446744073709551615", "makes more than 10000 matrices"),
            ("banded,sed=1..=2", "no parameter `sed` (did you mean `seed`?)"),
        ] {
            let message = Spec::parse_all(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
        // Ranges are refused if a single matrix is expected.
        assert!(message("banded,seed=1..3").contains("`seed=1..3` is not a whole number"));
    }

    #[test]
    fn absurd_sizes_are_refused_before_they_are_allocated() {
        let refusal = |text| spec(text).generate::<f32>().unwrap_err().to_string();
        assert!(refusal("poisson2d,n=100k").contains("more than 4294967294 rows"));
        assert!(refusal("fem3d,n=4000M").contains("choose a smaller `n`"));
        assert!(refusal("dense,n=1M").contains("choose a smaller `n`"));
        assert!(refusal("uniform,rows=4000M").contains("GiB"));
        assert!(refusal("rmat,scale=31,degree=1M").contains("GiB"));
        assert!(refusal("circuit,rows=1M,dense=1M,length=1M").contains("GiB"));
    }
}
