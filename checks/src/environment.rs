//! Numbers that the environment sets, as seeds and durations.

/// The number that the environment has by this name, or `usual`.
///
/// # Panics
/// If it is no number.
pub fn from_environment(name: &str, usual: u64) -> u64 {
    let text = std::env::var(name).unwrap_or_else(|_| usual.to_string());
    text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number is needed"))
}
