//! `include/sparseop.h` is what cbindgen writes for the sources.

use cbindgen::{Builder, Config};
use std::fs;
use std::path::Path;

#[test]
fn the_header_is_that_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let files = ["types", "failure", "stream", "operator", "product"];
    let builder = files.iter().fold(Builder::new().with_config(config), |builder, file| {
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
