//! Generated matrices of a campaign, and the classes that are held out together.

use crate::offline::Measured;
use crate::refit::SWEEP;
use anyhow::{Context, Result, anyhow, bail};
use sparseop::matrix::gallery::{self, Spec, Values};
use sparseop::matrix::market;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Largest size of a table of classes, in bytes: that of some hundred thousand matrices.
const MAX_BYTES: u64 = 16 << 20;

/// Classes of matrices from files, by the file names without extensions.
#[derive(Debug, Default)]
pub struct Classes(BTreeMap<String, String>);

impl Classes {
    /// Reads a table of tab-separated columns, of which those named `name` and `class` are used.
    ///
    /// # Errors
    ///
    /// An error if the file cannot be read, is larger than any table, or has no such column.
    pub fn read(path: &Path) -> Result<Self> {
        let mut text = String::new();
        let read = sparseop::open_regular(path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
            .with_context(|| format!("cannot read {}", path.display()))?;
        if read as u64 > MAX_BYTES {
            bail!(
                "{} has more than {MAX_BYTES} bytes, which no table of classes has",
                path.display()
            );
        }
        let mut lines = text.lines();
        let heading: Vec<&str> = lines.next().unwrap_or_default().split('\t').collect();
        let column = |name: &str| {
            heading.iter().position(|found| *found == name).ok_or_else(|| {
                let columns = heading.join(", ");
                anyhow!(
                    "{} has no column `{name}`, but {columns}; columns are separated by tabs",
                    path.display()
                )
            })
        };
        let (name, class) = (column("name")?, column("class")?);
        let row = |line: &str| {
            let cells: Vec<&str> = line.split('\t').collect();
            Some(((*cells.get(name)?).to_owned(), (*cells.get(class)?).to_owned()))
        };
        Ok(Self(lines.filter_map(row).collect()))
    }

    /// Class of a matrix by its name: the generator of a gallery matrix, the class in the table for
    /// a file, otherwise the file's own name. Generated matrices with packable values are only used
    /// for fitting.
    pub fn of(&self, matrix: &str) -> String {
        if let Some(spec) = matrix.strip_prefix(Spec::PREFIX) {
            let made_to_fit = spec.contains("values=");
            return if made_to_fit { SWEEP } else { spec.split(',').next().unwrap_or(spec) }
                .to_owned();
        }
        let stem = market::EXTENSIONS.iter().find_map(|extension| matrix.strip_suffix(extension));
        let stem = stem.unwrap_or(matrix);
        self.0.get(stem).cloned().unwrap_or_else(|| stem.to_owned())
    }

    /// Assigns the classes of this table to measurements.
    pub fn assign(&self, measured: &mut [Measured]) {
        measured.iter_mut().for_each(|m| m.class = self.of(&m.matrix));
    }
}

/// A matrix of the suite and, for some, the same matrix with packable values. These provide
/// measurements of the plans that pack values.
fn with_packable_values(spec: Spec) -> Vec<Spec> {
    /// One of every kind: uniform and irregular rows, near and far columns.
    const SOME: [&str; 7] =
        ["poisson3d", "stencil27", "femrandom", "road", "uniform", "rmat", "webbase"];
    let packable: &[Values] =
        if SOME.contains(&spec.entry().name) { &[Values::Few, Values::Pattern] } else { &[] };
    let packed: Vec<Spec> =
        packable.iter().map(|&values| spec.clone().with_values(values)).collect();
    std::iter::once(spec).chain(packed).collect()
}

/// The suite scaled to each of the numbers of entries in `suite`, followed by the sweep of each in
/// `sweep`.
pub fn generated(suite: &[usize], sweep: &[usize]) -> Vec<Spec> {
    let mut specs = Vec::new();
    for &entries in suite {
        // A matrix that cannot be scaled is included for the first size only.
        let scaled = gallery::suite().map(|spec| (spec.scaled_to(entries), spec));
        let new = scaled.filter(|(scaled, spec)| scaled != spec || entries == suite[0]);
        specs.extend(new.flat_map(|(scaled, _)| with_packable_values(scaled)));
    }
    specs.extend(sweep.iter().flat_map(|&entries| gallery::sweep(entries)));
    specs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_come_from_generators_tables_and_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index.tsv");
        std::fs::write(&path, "rows\tname\tclass\n7\twing\tmesh\n8\ttorn\n").unwrap();
        let classes = Classes::read(&path).unwrap();
        let of = |name| classes.of(name);
        assert_eq!([of("gallery:road,n=30"), of("gallery:lp")], ["road", "lp"]);
        assert_eq!(of("gallery:road,n=30,values=few"), SWEEP);
        assert_eq!(
            [of("wing.mtx.zst"), of("torn.mtx"), of("other.tar.gz")],
            ["mesh", "torn", "other"]
        );
        std::fs::write(&path, "name\tkind\n").unwrap();
        assert!(
            Classes::read(&path)
                .unwrap_err()
                .to_string()
                .contains("no column `class`, but name, kind")
        );
    }
}
