//! How many there are of something, in words.

/// A count and what is counted: `one` names one of it, and its plural ends with an "s".
pub fn counted(count: impl TryInto<u64>, one: &str) -> String {
    // A count that does not fit is greater than one, which is all that matters here.
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}
