//! The programs of a campaign: their commands, and how their results are read.

use crate::executor::Side;
use crate::file::{FileFault, ProgramFile};
use crate::grid::Axis;
use crate::parser::{Parser, Pattern};
use crate::template::{Template, TemplateError};
use toml::Spanned;

/// Placeholders that no axis gives: the server's address for RDMA, its address for TCP, and a free
/// TCP port.
pub(crate) const ADDRESS: &str = "address";
pub(crate) const TCP: &str = "tcp";
pub(crate) const PORT: &str = "port";

/// A program of a campaign.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name, the parameter `program` of its results.
    pub name: String,
    /// Line of its client's command in the file, from 1.
    pub line: usize,
    pub(crate) axes: Vec<Axis>,
    pub(crate) commands: Commands,
}

/// The commands of a program.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub client: Template,
    pub server: Option<Template>,
    pub start: Start,
    /// The server ends by itself; otherwise it is interrupted after its client has ended.
    pub server_ends: bool,
    /// One server serves all clients of its host; otherwise each client has its own.
    pub shared_server: bool,
    /// Its data cross the hosts' kernels, and the path only if the hosts have a network.
    pub is_tcp: bool,
    pub parser: Parser,
    /// Whose output has the results.
    pub from: Side,
}

/// Condition for the start of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The server listens on the TCP port.
    Listens,
    /// The server sleeps: nobody sees the listeners of the RDMA connection manager.
    Asleep,
    /// The server has printed this text.
    Says(String),
}

impl Program {
    /// Names of its placeholders that axes give.
    pub(crate) fn placeholders(&self) -> impl Iterator<Item = &str> {
        let commands = [Some(&self.commands.client), self.commands.server.as_ref()];
        let names = commands.into_iter().flatten().flat_map(Template::names);
        names.filter(|name| ![ADDRESS, TCP, PORT].contains(name))
    }

    /// Name of its client, if that is a program known to print its version and end.
    pub(crate) fn with_version(&self) -> Option<&str> {
        let word = self.commands.client.word(0)?;
        let name = word.rsplit('/').next()?;
        let is_perftest = name.starts_with("ib_") || name.starts_with("raw_ethernet_");
        (is_perftest || ["qperf", "iperf3", "fio"].contains(&name)).then_some(word)
    }

    /// True if a command has the placeholder `key`.
    pub(crate) fn uses(&self, key: &str) -> bool {
        self.placeholders().any(|name| name == key)
    }

    /// Names of the values that each of its results has, the most important first.
    pub fn values(&self) -> Vec<String> {
        self.commands.parser.owed(&self.commands.client)
    }
}

/// Place of a fault in the file, and the fault.
type Fault = (usize, FileFault);

impl Commands {
    /// The commands of `[[program]]`: as given if there is a parser, completed if the program is
    /// one of those that are known.
    pub fn of(given: &ProgramFile) -> Result<Self, Fault> {
        let client = template(&given.client)?;
        let server = given.server.as_ref().map(template).transpose()?;
        match parser(given)? {
            Some(parser) => Ok(Self::as_given(given, client, server, parser)),
            None => {
                let ready = given.ready.as_ref().map(|text| (text.span(), "ready"));
                let ends = given.server_ends.as_ref().map(|flag| (flag.span(), "server_ends"));
                let from = given.from.as_ref().map(|side| (side.span(), "from"));
                if let Some((span, key)) = ready.or(ends).or(from) {
                    return Err((span.start, FileFault::OfCommand(key)));
                }
                let at = given.client.span().start;
                let name = client.word(0).unwrap_or_default().to_owned();
                let completed = completed(client, server).map_err(|error| (at, error.into()))?;
                completed.ok_or((at, FileFault::UnknownProgram(name)))
            }
        }
    }

    fn as_given(
        given: &ProgramFile,
        client: Template,
        server: Option<Template>,
        parser: Parser,
    ) -> Self {
        let listens = server.as_ref().is_some_and(|server| server.has(PORT));
        let start = match &given.ready {
            Some(text) => Start::Says(text.get_ref().clone()),
            None if listens => Start::Listens,
            None => Start::Asleep,
        };
        let default = match (&parser, &server) {
            (Parser::Ingest, Some(_)) => Side::Server,
            _ => Side::Client,
        };
        Commands {
            is_tcp: client.has(TCP),
            client,
            server,
            start,
            shared_server: given.shared_server,
            server_ends: given.server_ends.as_ref().is_some_and(|flag| *flag.get_ref()),
            parser,
            from: given.from.as_ref().map_or(default, |side| *side.get_ref()),
        }
    }

    /// Texts that identify them.
    pub fn identity(&self) -> impl Iterator<Item = &str> {
        let server = self.server.as_ref().map_or("", Template::text);
        let from = if self.from == Side::Client { "client" } else { "server" };
        [self.client.text(), server, from].into_iter().chain(self.parser.identity())
    }
}

fn template(given: &Spanned<String>) -> Result<Template, Fault> {
    Template::parse(given.get_ref()).map_err(|error| (given.span().start, error.into()))
}

fn parser(given: &ProgramFile) -> Result<Option<Parser>, Fault> {
    match (&given.pattern, &given.parser) {
        (Some(pattern), Some(_)) => Err((pattern.span().start, FileFault::TwoParsers)),
        (Some(pattern), None) => Pattern::new(pattern.get_ref(), &given.units)
            .map(|pattern| Some(Parser::Pattern(pattern)))
            .map_err(|error| (pattern.span().start, error.into())),
        _ if !given.units.is_empty() => Err((given.name.span().start, FileFault::UnitsAlone)),
        (None, Some(name)) => match Parser::named(name.get_ref()) {
            Some(parser) => Ok(Some(parser)),
            None => Err((name.span().start, FileFault::UnknownParser(name.get_ref().clone()))),
        },
        (None, None) => Ok(None),
    }
}

/// The commands of a known program, with the words by which client and server meet; `None` if the
/// program is not known.
fn completed(
    client: Template,
    server: Option<Template>,
) -> Result<Option<Commands>, TemplateError> {
    let name = client.word(0).and_then(|word| word.rsplit('/').next()).unwrap_or_default();
    let subcommand = (client.word(1), client.word(2));
    Ok(Some(match (name, subcommand) {
        ("qperf", _) => qperf(client, server)?,
        ("iperf3", _) => iperf3(client, server)?,
        ("longhaul", (Some("storage"), Some("host"))) => storage(client, server)?,
        ("longhaul", (Some("ingest"), Some("send"))) => ingest(client, server)?,
        _ if name.starts_with("ib_") || name.starts_with("raw_ethernet_") => {
            perftest(client, server)?
        }
        _ => return Ok(None),
    }))
}

/// perftest: the server has the client's options.
fn perftest(client: Template, server: Option<Template>) -> Result<Commands, TemplateError> {
    let by_cm = ["-R", "--rdma_cm"].iter().any(|option| client.has_word(option));
    let (to, start) = if by_cm { ("{address}", Start::Asleep) } else { ("{tcp}", Start::Listens) };
    let server = server.unwrap_or_else(|| client.clone()).append(&["-p", "{port}"])?;
    Ok(Commands {
        client: client.append(&["-p", "{port}", to])?,
        server: Some(server),
        start,
        server_ends: true,
        shared_server: false,
        is_tcp: false,
        parser: Parser::Perftest,
        from: Side::Client,
    })
}

/// The server's command that the file gives, or else this one.
fn given_or(given: Option<Template>, command: &str) -> Result<Template, TemplateError> {
    given.map_or_else(|| Template::parse(command), Ok)
}

fn qperf(client: Template, server: Option<Template>) -> Result<Commands, TemplateError> {
    let is_tcp = client.names().count() == 0
        && ["tcp_", "udp_", "sctp_"].iter().any(|kind| client.text().contains(kind));
    let server = given_or(server, "qperf")?;
    Ok(Commands {
        client: client.insert(1, &["-lp", "{port}", "{tcp}"])?,
        server: Some(server.append(&["-lp", "{port}"])?),
        start: Start::Listens,
        server_ends: false,
        shared_server: false,
        is_tcp,
        parser: Parser::Qperf,
        from: Side::Client,
    })
}

fn iperf3(client: Template, server: Option<Template>) -> Result<Commands, TemplateError> {
    let server = given_or(server, "iperf3")?;
    Ok(Commands {
        client: client.append(&["--client", "{tcp}", "--port", "{port}", "--json"])?,
        server: Some(server.append(&["--server", "--one-off", "--port", "{port}"])?),
        start: Start::Listens,
        server_ends: true,
        shared_server: false,
        is_tcp: true,
        parser: Parser::Iperf3,
        from: Side::Client,
    })
}

fn storage(client: Template, server: Option<Template>) -> Result<Commands, TemplateError> {
    let server = given_or(server, "longhaul storage target")?;
    Ok(Commands {
        client: client.append(&["{address}", "--json"])?,
        server: Some(server),
        start: Start::Says("serving ".to_owned()),
        server_ends: false,
        shared_server: true,
        is_tcp: false,
        parser: Parser::Fio,
        from: Side::Client,
    })
}

fn ingest(client: Template, server: Option<Template>) -> Result<Commands, TemplateError> {
    let server = given_or(server, "longhaul ingest receive")?;
    Ok(Commands {
        client: client.append(&["{tcp}:{port}", "--json"])?,
        server: Some(server.append(&["--listen", "0.0.0.0:{port}", "--until-idle", "--json"])?),
        start: Start::Listens,
        server_ends: true,
        shared_server: false,
        is_tcp: false,
        parser: Parser::Ingest,
        from: Side::Server,
    })
}
