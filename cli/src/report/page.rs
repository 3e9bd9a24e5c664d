//! The HTML document.

use super::{Page, collection, section};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// Content security policy: the browser loads nothing and runs nothing, since the file is
/// self-contained.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// Up to this number of matrices all sections are open. With more of them each is opened by a
/// click.
const OPEN: usize = 3;

impl Page {
    /// Renders the document.
    pub(super) fn render(&self) -> Markup {
        let title = match &*self.matrices {
            [one] => format!("{}: {}", self.subject, one.name),
            all => format!("{}: {} matrices", self.subject, all.len()),
        };
        let open = self.matrices.len() <= OPEN;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="generator" content={ "sparseop " (env!("CARGO_PKG_VERSION")) };
                    title { (title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    (self.heading(&title))
                    main {
                        (collection::draw(&self.matrices))
                        @for (heading, text) in &self.words {
                            section class="words" {
                                h2 { (heading) }
                                pre class="scroll" tabindex="0" { (text) }
                            }
                        }
                        @for (i, matrix) in self.matrices.iter().enumerate() {
                            (section::draw(i, matrix, open))
                        }
                    }
                    footer { "sparseop " (env!("CARGO_PKG_VERSION")) }
                }
            }
        }
    }

    fn heading(&self, title: &str) -> Markup {
        let mut devices: Vec<&str> = self.matrices.iter().map(|m| m.device.as_str()).collect();
        devices.dedup();
        let command = std::iter::once("sparseop".to_owned()).chain(std::env::args().skip(1));
        let command = command.collect::<Vec<_>>().join(" ");
        html! {
            header {
                h1 { (title) }
                p class="properties" {
                    span { (devices.join(", ")) }
                    span { (jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()) }
                    span class="command" title=(command) { code { (command) } }
                }
            }
        }
    }
}
