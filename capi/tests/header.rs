//! `include/sparseop.h` is what cbindgen writes for the sources.

use cbindgen::{Builder, Config};
use std::fs;
use std::path::Path;

/// Files with functions and types of the interface.
const FILES: [&str; 5] = ["types", "failure", "stream", "operator", "product"];

/// Functions that return a text that exists.
const TEXTS: [&str; 2] = ["sparseop_last_error", "sparseop_version"];

#[test]
fn every_function_ends_panics_at_the_border() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut functions = 0;
    for file in FILES {
        let source = fs::read_to_string(folder.join(format!("{file}.rs"))).unwrap();
        for function in source.split("extern \"C\" fn ").skip(1) {
            let body = function.split("\n}").next().unwrap();
            let name = body.split('(').next().unwrap();
            let guarded =
                ["catch_panics(", "write_property("].iter().any(|call| body.contains(call));
            assert!(guarded || TEXTS.contains(&name), "{name}");
            functions += 1;
        }
    }
    assert!(functions > 15, "{functions}");
}

#[test]
fn the_header_is_that_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let builder = FILES.iter().fold(Builder::new().with_config(config), |builder, file| {
        builder.with_src(folder.join("src").join(format!("{file}.rs")))
    });
    let mut written = Vec::new();
    builder.generate().unwrap().write(&mut written);
    let written = String::from_utf8(written).unwrap();
    let header = folder.join("include/sparseop.h");
    if std::env::var_os("SPARSEOP_WRITE_HEADER").is_some() {
        fs::write(&header, &written).unwrap();
    }
    let committed = fs::read_to_string(&header).unwrap_or_default();
    assert!(committed == written, "out of date: run this test with SPARSEOP_WRITE_HEADER=1");
}
