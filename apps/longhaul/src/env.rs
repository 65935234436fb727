//! `longhaul env`: the environment of `longhaul exec`, for shells, CI jobs and containers.

use crate::exec::{Environment, Network};
use crate::output;
use crate::problem::Problem;
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  eval \"$(longhaul env)\"                              every later command of a shell
  longhaul env --format env-file >> \"$GITHUB_ENV\"     every later step of a GitHub job
  longhaul env --format env-file --udp=192.0.2.7      for 'docker run --env-file'
  longhaul env --format json

The shell's programs then see the RDMA device longhaul0, as with 'longhaul exec' and the same
options. Only one of them at a time can use the device's address.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    network: Network,
    /// Form of the output
    #[arg(long, value_enum, default_value_t = Format::Sh)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Commands for sh and bash: export and unset
    Sh,
    /// Lines NAME=VALUE, as $GITHUB_ENV and docker's --env-file take them
    EnvFile,
    /// An object of names and values
    Json,
}

pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    if args.network.is_lab() {
        return Err(Problem::new(
            "a program holds its place on a lab host while it runs, and an environment cannot",
            "start a shell there: 'longhaul exec --host a -- bash'",
        ));
    }
    let environment = args.network.environment()?;
    environment.create_files();
    let text = rendered(&environment, args.format)?;
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn rendered(environment: &Environment, format: Format) -> Result<String, Problem> {
    let variables = environment
        .variables()
        .into_iter()
        .map(|(name, value)| Ok((name, text_of(name, value)?)))
        .collect::<Result<Vec<_>, Problem>>()?;
    Ok(match format {
        Format::Sh => {
            let unset: Vec<_> = environment.unset().collect();
            variables.iter().fold(format!("unset {}\n", unset.join(" ")), |mut lines, variable| {
                let (name, value) = variable;
                let _ = writeln!(lines, "export {name}={}", quoted(value));
                lines
            })
        }
        Format::EnvFile => variables.iter().fold(String::new(), |mut lines, (name, value)| {
            let _ = writeln!(lines, "{name}={value}");
            lines
        }),
        Format::Json => {
            let object: BTreeMap<_, _> = variables.into_iter().collect();
            let text = serde_json::to_string_pretty(&object)
                .map_err(|error| Problem::plain(format!("cannot write JSON: {error}")))?;
            text + "\n"
        }
    })
}

/// A value that every form can hold.
fn text_of(name: &str, value: OsString) -> Result<String, Problem> {
    let text = value.into_string().map_err(|value| {
        Problem::plain(format!("{name} is not text: {}", value.to_string_lossy()))
    })?;
    if text.contains('\n') {
        return Err(Problem::plain(format!("{name} has several lines")));
    }
    Ok(text)
}

/// `text` as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        assert_eq!(quoted("/tmp/a-1:b.so"), "/tmp/a-1:b.so");
        assert_eq!(quoted("10.0.0.1 on eth0"), "'10.0.0.1 on eth0'");
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_value_of_several_lines_is_refused() {
        assert!(text_of("A", "a\nb".into()).unwrap_err().to_string().contains("several lines"));
        assert_eq!(text_of("A", "a b".into()).unwrap(), "a b");
    }
}
