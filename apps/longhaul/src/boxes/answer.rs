//! Replies of boxes, and their output forms.

use crate::problem::Problem;
use longhaul_boxes::control::{self, Asked, ControlError};
use longhaul_boxes::prometheus;
use longhaul_boxes::status::BoxStatus;
use serde::Serialize;
use std::path::Path;

/// Result of querying a box.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Its state.
    State(BoxStatus),
    /// No reply, and the reason. The name is that by which it was found.
    Failed { name: String, error: String },
}

impl Answer {
    fn of(asked: Asked) -> Self {
        match asked.state {
            Ok(state) => Answer::State(state),
            Err(error) => {
                Answer::Failed { name: asked.name, error: Problem::from(error).to_string() }
            }
        }
    }

    /// Formats the reply as text.
    pub fn to_text(&self) -> String {
        match self {
            Answer::State(state) => state.to_text(),
            Answer::Failed { name, error } => format!("'{name}' has no status: {error}\n"),
        }
    }

    fn state(&self) -> Option<&BoxStatus> {
        match self {
            Answer::State(state) => Some(state),
            Answer::Failed { .. } => None,
        }
    }
}

/// Returns the replies of the box with this name, of the one at this socket, or of all boxes found.
pub fn ask(name: Option<&str>, control: Option<&Path>) -> Result<Vec<Answer>, ControlError> {
    Ok(control::ask(name, control)?.into_iter().map(Answer::of).collect())
}

/// Formats in Prometheus' text format. A box without a reply has a comment and no samples.
pub fn exposition(answers: &[Answer]) -> String {
    let failed = answers.iter().filter(|answer| answer.state().is_none());
    let comment =
        |answer: &Answer| format!("# {}\n", answer.to_text().trim_end().replace('\n', " "));
    let comments: String = failed.map(comment).collect();
    comments + &prometheus::exposition(answers.iter().filter_map(Answer::state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_that_does_not_answer_is_a_comment() {
        let failed =
            Answer::Failed { name: "west".to_string(), error: "it\nis shutting down".to_string() };
        assert_eq!(exposition(&[failed]), "# 'west' has no status: it is shutting down\n");
    }

    #[test]
    fn an_answer_that_is_none_has_its_name_and_the_cure() {
        let asked = |name: &str, error| Asked { name: name.to_string(), state: Err(error) };
        let state = BoxStatus { name: "good".to_string(), ..BoxStatus::default() };
        let answers = [
            Answer::of(asked("ending", ControlError::Ending("/x".into()))),
            Answer::of(Asked { name: "good".to_string(), state: Ok(state) }),
        ];
        let json = serde_json::to_value(&answers).unwrap();
        assert_eq!(
            json[0]["error"],
            "the box at /x is shutting down or hangs; ask again; 'longhaul box health' shows which"
        );
        assert!(json[1]["error"].is_null(), "{json}");
        assert!(answers[0].to_text().starts_with("'ending' has no status: "));
    }
}
