//! Constants of the library that kernels use, as a header.

use std::fs;
use std::path::{Path, PathBuf};

/// Name of the header.
pub(crate) const HEADER: &str = "constants.cuh";

/// Name of the source files with such constants, which hold nothing else. The name of the folder is
/// the namespace in the header.
const FILE: &str = "constants.rs";

/// All such files below `folder`, sorted.
///
/// # Errors
///
/// Errors of reading folders.
pub(crate) fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.append(&mut files(&path)?);
        } else if path.file_name().is_some_and(|name| name == FILE) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The header with the constants of sources, each with its namespace.
///
/// # Errors
///
/// If a value is not an expression of numbers and earlier constants that C++ reads alike.
pub(crate) fn header(sources: &[(String, String)]) -> Result<String, String> {
    let mut text = "#pragma once\n".to_owned();
    for (namespace, source) in sources {
        text += &format!("namespace {namespace} {{\n");
        let mut names = Vec::new();
        for line in source.lines() {
            let Some((_, constant)) = line.split_once("const ") else { continue };
            let parts = constant.strip_suffix(';').and_then(|c| c.split_once(" = "));
            let (name, value) = parts.ok_or(format!("`{line}` is not one line"))?;
            let (name, kind) = name.split_once(": ").ok_or(format!("`{line}` has no type"))?;
            let value = match value {
                "u16::MAX" => "0xFFFF".to_owned(),
                "u32::MAX" => "0xFFFFFFFF".to_owned(),
                // Shifted without a sign.
                _ if value.contains(char::is_uppercase) => value.replace("1 <<", "1u <<"),
                _ => value.replace('_', "").replace("1 <<", "1u <<"),
            };
            let known = |word: &str| {
                let is_number = match word.strip_prefix("0x") {
                    Some(digits) => digits.chars().all(|c| c.is_ascii_hexdigit()),
                    None => word.trim_end_matches('u').chars().all(|c| c.is_ascii_digit()),
                };
                is_number || names.contains(&word)
            };
            let is_number = value.split(|c: char| " <+*-()".contains(c)).all(known);
            if !is_number || !["u16", "u32", "u64", "usize"].contains(&kind) {
                return Err(format!("`{line}` has no number that kernels can have"));
            }
            names.push(name);
            // Kernels count in 32 bits. Constants of more than 8 hexadecimal digits are wider.
            let is_wide = value.strip_prefix("0x").is_some_and(|digits| digits.len() > 8);
            let integer = if is_wide { "unsigned long long" } else { "unsigned int" };
            text += &format!("[[maybe_unused]] constexpr {integer} {name} = {value};\n");
        }
        text += "}\n";
    }
    Ok(text)
}
