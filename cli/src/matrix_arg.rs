//! The MATRIX argument: a file, a folder of files, or a matrix of the gallery.

use super::console::{self, Console, cause_chain, duration, is_output_error};
use anyhow::{Context, Result, anyhow, bail};
use clap::builder::{OsStringValueParser, TypedValueParser};
use rayon::prelude::*;
use sparseop::matrix::market::{self, ReadProgress, ReadStage, Reader};
use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::tuning::stopwatch::timed;
use sparseop::{Scalar, printable};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

/// The matrices a subcommand works on.
#[derive(Debug, clap::Args)]
pub(super) struct Matrices {
    /// Matrix Market files, folders of them, or gallery:NAME[,key=value...]; values may be ranges:
    /// seed=1..4 (1, 2, 3) or seed=1..=4
    #[arg(value_name = "MATRIX", required = true, value_parser = several())]
    matrices: Vec<MatrixArg>,
}

impl Matrices {
    /// Calls `work` for every matrix. A failure is reported and the loop continues.
    pub(super) fn for_each(
        &self,
        console: &Console,
        mut work: impl FnMut(&MatrixSource) -> Result<()>,
    ) -> Result<()> {
        for given in &self.matrices {
            for source in &given.expand_or_report(console) {
                match work(source) {
                    Err(error) if is_output_error(&error) => return Err(error),
                    Err(error) => {
                        let (name, message) = (source.name(), cause_chain(&error));
                        let said = message.contains(&name);
                        console.error(&if said { message } else { format!("{name}: {message}") });
                    }
                    Ok(()) => {}
                }
            }
        }
        Ok(())
    }
}

/// An argument for one matrix or for several.
#[derive(Debug, Clone)]
pub(super) enum MatrixArg {
    /// Generated matrices.
    Gallery(Vec<gallery::Spec>),
    /// A file, or a folder of files.
    Path(PathBuf),
}

/// Source of a matrix.
#[derive(Debug, Clone)]
pub(super) enum MatrixSource {
    /// A generator.
    Gallery(gallery::Spec),
    /// A file.
    Path(PathBuf),
}

/// The path of an argument. `-` is standard input.
fn path(text: OsString) -> PathBuf {
    if text == "-" { "/dev/stdin".into() } else { text.into() }
}

/// Parser of an argument for one matrix.
pub(super) fn parser() -> impl TypedValueParser<Value = MatrixSource> {
    OsStringValueParser::new().try_map(|text| match spelled(&text) {
        Some(spec) => spec.parse().map(MatrixSource::Gallery),
        None => Ok(MatrixSource::Path(path(text))),
    })
}

/// Parser of an argument for one matrix; a generated one has these values unless it names others.
pub(super) fn parser_with(values: gallery::Values) -> impl TypedValueParser<Value = MatrixSource> {
    OsStringValueParser::new().try_map(move |text| match spelled(&text) {
        Some(spec) => {
            let names_values = spec.contains(",values=");
            let spec = spec.parse::<gallery::Spec>();
            let spec = spec.map(|spec| if names_values { spec } else { spec.with_values(values) });
            spec.map(MatrixSource::Gallery)
        }
        None => Ok(MatrixSource::Path(path(text))),
    })
}

/// Parser of an argument for one matrix or several.
pub(super) fn several() -> impl TypedValueParser<Value = MatrixArg> {
    OsStringValueParser::new().try_map(|text| match spelled(&text) {
        Some(specs) => gallery::Spec::parse_all(specs).map(MatrixArg::Gallery),
        None => Ok(MatrixArg::Path(path(text))),
    })
}

/// The argument, if it names a generated matrix.
fn spelled(text: &OsStr) -> Option<&str> {
    text.to_str().filter(|text| text.starts_with(gallery::Spec::PREFIX))
}

impl MatrixArg {
    /// The file, if it is one.
    pub(super) fn file(&self) -> Option<PathBuf> {
        match self {
            Self::Path(path) if !path.is_dir() => Some(path.clone()),
            _ => None,
        }
    }

    /// Generated matrices in order, the files of a folder by name, or a single file.
    fn expand(&self, console: &Console) -> Result<Vec<MatrixSource>> {
        let folder = match self {
            Self::Gallery(specs) => {
                return Ok(specs.iter().cloned().map(MatrixSource::Gallery).collect());
            }
            Self::Path(path) if path.is_dir() => path,
            Self::Path(path) => return Ok(vec![MatrixSource::Path(path.clone())]),
        };
        let reading = || format!("cannot read folder {}", folder.display());
        let entries = std::fs::read_dir(folder).with_context(reading)?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
        let mut paths = paths.with_context(reading)?;
        paths.retain(|path| market::is_matrix_path(path) && !path.is_dir());
        // A pipe or a device may have no end. What cannot be looked at is an error when it is read.
        paths.retain(|path| {
            let is_skipped = path.metadata().is_ok_and(|found| !found.is_file());
            if is_skipped {
                console.warn(&format!("{} is not a regular file and is skipped", path.display()));
            }
            !is_skipped
        });
        if paths.is_empty() {
            let extensions = market::EXTENSIONS.join(", ");
            bail!("there is no matrix in {}: no file ends in {extensions}", folder.display());
        }
        paths.sort();
        Ok(paths.into_iter().map(MatrixSource::Path).collect())
    }

    /// Returns the matrices of the argument. A folder that cannot be read is reported.
    pub(super) fn expand_or_report(&self, console: &Console) -> Vec<MatrixSource> {
        self.expand(console).unwrap_or_else(|error| {
            console.error(&cause_chain(&error));
            Vec::new()
        })
    }
}

impl MatrixSource {
    /// The file, if it is one.
    pub(super) fn file(&self) -> Option<PathBuf> {
        match self {
            Self::Path(path) => Some(path.clone()),
            Self::Gallery(_) => None,
        }
    }

    /// The matrix's name: that of the file, its control characters escaped, or the specification in
    /// a form that can be typed again.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Gallery(spec) => format!("{}{spec}", gallery::Spec::PREFIX),
            Self::Path(path) => {
                let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
                printable(&name).into_owned()
            }
        }
    }

    /// Class under which matrices are summarised: the name of the generator or of the folder.
    pub(super) fn class(&self) -> String {
        match self {
            Self::Gallery(spec) => spec.entry().name.to_owned(),
            Self::Path(path) => {
                let folder = path.parent().and_then(|folder| folder.file_name());
                folder.map_or_else(
                    || "files".to_owned(),
                    |name| printable(&name.to_string_lossy()).into_owned(),
                )
            }
        }
    }

    /// The generated matrix that the name of a missing file is.
    fn meant(&self) -> Option<String> {
        let Self::Path(path) = self else { return None };
        let spec = path.to_str().filter(|_| !path.exists())?;
        // Without the prefix, or with a misspelt one.
        let spec = match spec.split_once(':') {
            Some((prefix, spec)) if prefix.starts_with(['g', 'G']) => spec,
            _ => spec,
        };
        gallery::Spec::parse_all(spec).ok()?;
        Some(format!("{}{spec}", gallery::Spec::PREFIX))
    }

    /// Reads or generates the matrix.
    pub(super) fn load<T: Scalar>(&self, console: &Console) -> Result<CsrMatrix<T>> {
        let (matrix, seconds) = match self {
            Self::Gallery(spec) => {
                let doing = format!("generating {}", self.name());
                let generated = console.during(doing, || timed(|| spec.generate()));
                console.detail(|| format!("{}: {}", self.name(), spec.structure()));
                generated
            }
            Self::Path(path) => {
                let bar = console.bar("{msg} {wide_bar} {bytes} of {total_bytes}");
                let name = self.name();
                let listener = |progress: ReadProgress| {
                    let doing = if progress.stage == ReadStage::Decompress {
                        "decompressing"
                    } else {
                        "reading"
                    };
                    bar.set_message(format!("{doing} {name}"));
                    bar.set_length(progress.total);
                    bar.set_position(progress.done.min(progress.total));
                };
                let above = AtomicU64::new(0);
                let read =
                    timed(|| Reader::new().progress(&listener).count_above(&above).read(path));
                bar.finish_and_clear();
                if let Some(said) = above_the_diagonal(above.into_inner()) {
                    console.warn(&format!("{name}: {said}"));
                }
                read
            }
        };
        console.detail(|| format!("{} loaded in {}", self.name(), duration(seconds)));
        let matrix = matrix.map_err(|error| match self.meant() {
            Some(meant) => anyhow!("{error}; did you mean `{meant}`?"),
            None => error.into(),
        })?;
        if let Some(said) = not_finite_in(matrix.values()) {
            console.warn(&format!("{}: {said}", self.name()));
        }
        Ok(matrix)
    }
}

/// Sentence about values that are not finite. None without them.
fn not_finite_in<T: Scalar>(values: &[T]) -> Option<String> {
    let count = |is: fn(f64) -> bool| values.par_iter().filter(|v| is(v.to_f64())).count() as u64;
    match count(|value| !value.is_finite()) {
        0 => None,
        all => {
            let nan = count(f64::is_nan);
            not_finite(nan, all - nan, values.len() as u64)
        }
    }
}

/// Sentence about listed entries above the diagonal of a symmetric file. None without them.
pub(super) fn above_the_diagonal(count: u64) -> Option<String> {
    (count > 0).then(|| {
        format!(
            "{} above the diagonal of a symmetric file, which lists the lower triangle; \
             they are mirrored, and values listed in both triangles are added",
            console::count(count, "entry")
        )
    })
}

/// Sentence about values that are not finite. None without them.
pub(super) fn not_finite(nan: u64, infinite: u64, values: u64) -> Option<String> {
    (nan + infinite > 0).then(|| {
        format!(
            "{nan} of the {values} values are NaN and {infinite} infinite; products are NaN or \
             infinite in their rows"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_not_finite_are_counted() {
        assert_eq!(not_finite_in(&[1.0f64, -2.0]), None);
        let said = not_finite_in(&[1.0f32, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]).unwrap();
        assert!(said.starts_with("1 of the 4 values are NaN and 2 infinite"), "{said}");
        assert_eq!(above_the_diagonal(0), None);
        assert!(above_the_diagonal(1).unwrap().starts_with("1 entry above the diagonal"));
    }
}
