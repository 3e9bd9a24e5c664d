//! Rules of the kernels.

use super::{declared_types, files_with, repository};
use sparseop::formats::FormatKind;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// Types of the kernels with the name of a Rust type that stands for the same thing.
const MIRRORED: [&str; 19] = [
    "Bf16",
    "Chunk",
    "ColumnSpan",
    "F16",
    "FloatLayout",
    "LongRows",
    "PanelTiles",
    "PeerSums",
    "Piece",
    "Pieces",
    "Plain",
    "RingBuffers",
    "Same",
    "Section",
    "Sink",
    "SliceShape",
    "Tile",
    "TileTable",
    "Widened",
];

/// Files of the kernels.
pub(super) fn kernel_files() -> Vec<PathBuf> {
    ["cu", "cuh"].iter().flat_map(|e| files_with(&repository().join("kernels"), e)).collect()
}

/// Name of the type that a line of a kernel declares, if any.
fn declared_struct(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("struct ")?;
    // `alignas(16) `, whose number may be an expression.
    let rest = if rest.starts_with("alignas(") { rest.rsplit_once(") ")?.1 } else { rest };
    rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()
}

#[test]
fn a_type_of_a_kernel_has_the_name_of_no_other_thing() {
    let rust = declared_types();
    let mut mirrored = BTreeSet::new();
    let mut wrong = Vec::new();
    for path in kernel_files() {
        let text = fs::read_to_string(&path).unwrap();
        for name in text.lines().filter_map(declared_struct) {
            let Some(files) = rust.get(name) else { continue };
            match MIRRORED.iter().find(|known| **known == name) {
                Some(known) => _ = mirrored.insert(*known),
                None => wrong.push(format!("{}: {name}, also in {files:?}", path.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(mirrored, BTreeSet::from(MIRRORED), "names in both languages");
}

#[test]
fn every_format_has_its_kernels_and_they_include_its_own_headers() {
    let mut files: Vec<(String, String)> = Vec::new();
    for entry in fs::read_dir(repository().join("kernels")).unwrap() {
        let path = entry.unwrap().path();
        // `kernels/compiled` holds machine code.
        if path.is_file() {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            files.push((name, fs::read_to_string(path).unwrap()));
        }
    }
    for kind in FormatKind::ALL {
        let (own, file) = (format!("{kind}_"), format!("{kind}.cu"));
        let mut kernels = files
            .iter()
            .filter(|(name, _)| name.ends_with(".cu") && (*name == file || name.starts_with(&own)))
            .peekable();
        assert!(kernels.peek().is_some(), "{kind} has no kernels");
        for (name, text) in kernels {
            let mut includes = text.lines().filter_map(|line| line.strip_prefix("#include "));
            assert_eq!(includes.next(), Some("\"common.cuh\""), "{name}");
            let foreign = includes.find(|header| !header.starts_with(&format!("\"{own}")));
            assert_eq!(foreign, None, "{name}");
        }
    }
    for (header, text) in files.iter().filter(|(name, _)| name.ends_with(".cuh")) {
        assert_eq!(text.matches("#pragma once").count(), 1, "{header}");
        let own = format!("\"{}_", header.split('_').next().unwrap());
        let includes = text.lines().filter_map(|line| line.strip_prefix("#include "));
        let mut foreign = includes.filter(|name| !name.starts_with(&own));
        assert!(header == "common.cuh" || foreign.all(|name| name == "\"unit.cuh\""), "{header}");
        assert!(header == "policy.cuh" || !text.contains("__CUDA_ARCH__"), "{header}");
    }
}

#[test]
fn the_scanner_sees_structs() {
    for (line, name) in [
        ("struct A {", Some("A")),
        ("struct B<8> {", Some("B")),
        ("    struct alignas(N < 2 ? N * sizeof(T) : 2) C {", Some("C")),
        ("// struct D {", None),
    ] {
        assert_eq!(declared_struct(line), name, "{line}");
    }
}
