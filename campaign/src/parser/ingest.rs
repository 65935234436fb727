//! The JSON of both sides of 'longhaul ingest'.

use super::{NoResult, Values, json};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Sent {
    messages: f64,
    rate_bps: f64,
    behind_s: f64,
}

#[derive(Deserialize)]
struct Received {
    messages: BTreeMap<String, f64>,
    windows_complete: f64,
    damaged: Option<u64>,
}

/// The sender's rate, and what of it is present at the receiver.
pub fn read(sender: &str, receiver: &str) -> Result<Values, NoResult> {
    let sent: Sent = json(sender, "the sender")?;
    let received: Received = json(receiver, "the receiver")?;
    if let Some(1..) = received.damaged {
        return Err(NoResult::new("the receiver found other bytes than were sent"));
    }
    if sent.messages <= 0.0 {
        return Err(NoResult::new("the sender sent no message"));
    }
    let present = received.messages.get("present").copied().unwrap_or_default() / sent.messages;
    Ok(Values::from([
        ("goodput_bps".to_owned(), sent.rate_bps * present),
        ("sent_bps".to_owned(), sent.rate_bps),
        ("present_percent".to_owned(), present * 100.0),
        ("windows_complete".to_owned(), received.windows_complete),
        ("behind_s".to_owned(), sent.behind_s),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_what_is_present() {
        let sender = r#"{"messages": 200, "rate_bps": 1e9, "behind_s": 0}"#;
        let receiver = r#"{"messages": {"present": 100, "lost": 100}, "windows_complete": 3}"#;
        let values = read(sender, receiver).unwrap();
        assert_eq!((values["goodput_bps"], values["present_percent"]), (5e8, 50.0));
        let damaged = receiver.replace("3}", "3, \"damaged\": 2}");
        assert!(read(sender, &damaged).unwrap_err().0.contains("other bytes"));
        assert!(read("", receiver).unwrap_err().0.starts_with("the sender printed no result"));
    }
}
