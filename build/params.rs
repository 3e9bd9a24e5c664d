//! Parameters of the kernels: a Rust struct for every signature in the kernel files, so that a
//! launch names each parameter and has its type.

use std::fmt::Write;

/// A kernel with its parameters.
#[derive(PartialEq, Eq)]
struct Signature {
    /// Name of the struct.
    name: String,
    /// Name in the source, for the documentation.
    kernel: String,
    parameters: Vec<KernelParameter>,
}

#[derive(Clone, PartialEq, Eq)]
struct KernelParameter {
    name: String,
    /// Rust type.
    kind: String,
    /// Type variables in it.
    variables: Vec<String>,
}

/// Returns the module with the structs of a kernel file, which is named without its extension.
/// Kernels with equal parameters share the struct of the first.
///
/// # Errors
///
/// If a parameter has a type that launches do not pass.
pub(crate) fn module(file: &str, source: &str) -> Result<String, String> {
    let mut signatures: Vec<Signature> = Vec::new();
    for found in signatures_of(file, source)? {
        if let Some(first) = signatures.iter_mut().find(|known| known.name == found.name) {
            // The instances of `float` and `double` differ in the types that depend on them.
            for (parameter, other) in first.parameters.iter_mut().zip(found.parameters) {
                if *parameter != other {
                    *parameter = typed(&parameter.name, "T", parameter.kind.starts_with("Ptr"))?;
                }
            }
        } else if let Some(first) =
            signatures.iter_mut().find(|known| known.parameters == found.parameters)
        {
            write!(first.kernel, "`, `{}", found.kernel).map_err(|error| error.to_string())?;
        } else {
            signatures.push(found);
        }
    }
    if signatures.is_empty() {
        return Ok(String::new());
    }
    let structs: Result<String, _> = signatures.iter().map(struct_of).collect();
    let structs = structs.map_err(|error| error.to_string())?;
    Ok(format!("pub(crate) mod {file} {{\nuse super::*;\n{structs}}}\n"))
}

/// The struct of a signature, which adds its fields to a launch.
fn struct_of(signature: &Signature) -> Result<String, std::fmt::Error> {
    let Signature { name, kernel, parameters } = signature;
    let mut variables: Vec<String> = Vec::new();
    let is_out = |parameter: &KernelParameter| parameter.kind.starts_with("Out");
    if parameters.iter().any(is_out) {
        variables.push("'a".to_owned());
    }
    for variable in parameters.iter().flat_map(|parameter| &parameter.variables) {
        let is_scalar = |p: &KernelParameter| p.kind == *variable || is_out(p);
        let bound =
            if variable == "T" && parameters.iter().any(is_scalar) { ": Scalar" } else { "" };
        let variable = format!("{variable}{bound}");
        if !variables.contains(&variable) {
            variables.push(variable);
        }
    }
    let list = |variables: &[String]| match variables {
        [] => String::new(),
        some => format!("<{}>", some.join(", ")),
    };
    let names: Vec<String> =
        variables.iter().map(|variable| variable.replace(": Scalar", "")).collect();
    let (declared, used) = (list(&variables), list(&names));
    let (mut fields, mut body) = (String::new(), "launch".to_owned());
    for KernelParameter { name, kind, .. } in parameters {
        writeln!(fields, "    pub(crate) {name}: {kind},")?;
        match kind.as_str() {
            "T" => write!(body, ".arg(self.{name}.bits())")?,
            kind if kind.starts_with("Out") || kind.starts_with("VectorUnits") => {
                body = format!("self.{name}.to({body})");
            }
            _ => write!(body, ".arg(self.{name})")?,
        }
    }
    Ok(format!(
        "/// Parameters of `{kernel}`.\npub(crate) struct {name}{declared} {{\n{fields}}}\n\
         impl{declared} Params for {name}{used} {{\n    \
         fn add_to(self, launch: Launch) -> Launch {{\n        {body}\n    }}\n}}\n"
    ))
}

/// The kernels of a source, in order.
fn signatures_of(file: &str, source: &str) -> Result<Vec<Signature>, String> {
    let source = source.replace("\\\n", " ");
    let mut found = Vec::new();
    for (brace, _) in source.match_indices('{') {
        let Some((kernel, parameters)) = entry_point(&source[..brace]) else { continue };
        // In a macro a kernel may have its name from the macro's parameters.
        let (name, kernel) = match kernel.strip_prefix("NAME") {
            Some(rest) => {
                let define = source[..brace].rsplit("#define ").next().unwrap_or_default();
                let name = format!("{}{rest}", define.split('(').next().unwrap_or_default());
                (name.clone(), name)
            }
            None => (kernel.replacen(file, "", 1), kernel.replace("##", "")),
        };
        let words: Vec<&str> = name
            .split(['#', '_'])
            .filter(|word| !["", "NAME", "LANES", "SUFFIX", "f32", "f64"].contains(word))
            .collect();
        let words = if words.is_empty() { file.split('_').collect() } else { words };
        // The comma of the macro's arguments separates no parameters.
        let parameters = parameters.replace("(T, N)", "");
        let parameters: Result<Vec<_>, _> = parameters.split(',').map(parameter).collect();
        found.push(Signature {
            name: words.into_iter().map(capitalised).collect(),
            parameters: parameters.map_err(|error| format!("{file}: {kernel}: {error}"))?,
            kernel,
        });
    }
    Ok(found)
}

/// Name and parameters of the kernel whose body follows `text`, if one does:
/// `KERNEL_WITH(name, 4)(parameters)`.
fn entry_point(text: &str) -> Option<(&str, &str)> {
    let (head, parameters) = without_parentheses(text.trim_end())?;
    let (before, arguments) = without_parentheses(head.trim_end())?;
    let attribute = before.rsplit(|c: char| !is_part_of_name(c)).next()?;
    let name = arguments.split(',').next()?.trim();
    attribute.contains("KERNEL").then_some((name, parameters))
}

fn is_part_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '#'
}

/// The text before the parentheses that end `text`, and the text between them.
fn without_parentheses(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    let (at, _) = text.char_indices().rev().find(|(_, c)| {
        depth += i32::from(*c == ')') - i32::from(*c == '(');
        depth == 0
    })?;
    text.ends_with(')').then(|| (&text[..at], &text[at + 1..text.len() - 1]))
}

/// `word` with a capital.
fn capitalised(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + &rest.to_lowercase()
}

/// Parses a parameter.
fn parameter(text: &str) -> Result<KernelParameter, String> {
    let text = text.trim();
    if text.starts_with("EPILOGUE_PARAMETERS") {
        let variables = vec!["T".to_owned()];
        return Ok(KernelParameter {
            name: "out".to_owned(),
            kind: "Out<'a, T>".to_owned(),
            variables,
        });
    }
    if text == "UNIT_PARAMETERS" {
        let (name, kind) = ("vectors".to_owned(), "VectorUnits<T>".to_owned());
        return Ok(KernelParameter { name, kind, variables: vec!["T".to_owned()] });
    }
    let (kind, name) = text.rsplit_once(' ').ok_or(format!("`{text}` has no name"))?;
    let kind = kind.trim_start_matches("const ").trim();
    match (kind.strip_suffix('*'), name.strip_prefix('*')) {
        (None, None) => typed(name, kind, false),
        (_, Some(name)) => typed(name, kind, true),
        (Some(kind), None) => typed(name, kind.trim(), true),
    }
}

/// The parameter of a C type, or a pointer to it.
fn typed(name: &str, kind: &str, is_pointer: bool) -> Result<KernelParameter, String> {
    let known = match kind {
        "u8" | "u16" | "u32" | "u64" | "i64" => kind,
        "int" => "i32",
        "double" => "f64",
        "uint2" => "[u32; 2]",
        "uint4" => "[u32; 4]",
        _ => "",
    };
    let (kind, variables) = match kind {
        _ if !known.is_empty() => (known, vec![]),
        "void" => ("Value", vec!["Value".to_owned()]),
        "float" => ("T", vec!["T".to_owned()]),
        _ => (kind, vec![kind.to_owned()]),
    };
    if !is_pointer && !["u32", "u64", "T"].contains(&kind) {
        return Err(format!("`{name}` has a type that launches do not pass"));
    }
    let kind = if is_pointer { format!("Ptr<{kind}>") } else { kind.to_owned() };
    Ok(KernelParameter { name: name.to_owned(), kind, variables })
}
