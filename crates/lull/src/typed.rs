//! The command line as it was typed, so that a reader of a report can repeat it.

/// Returns the command that was typed.
pub fn command_line() -> String {
    let quote = |word: String| {
        let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "-_=,.%/:".contains(c));
        if plain { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    let words = std::env::args().skip(1).map(quote);
    std::iter::once("lull".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
