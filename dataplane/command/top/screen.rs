//! Terminal of `wedjat top`: draws the report as tables after each interval.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row as TableRow, Table};

use super::reading::Reading;
use super::report::{NodeReport, Report, Row, Section, aligned};

/// Interval between checks for keys and signals.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Style of rows that show a problem.
const BAD: Style = Style::new().fg(Color::Red);
/// Style of column names.
const NAMES: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Action requested by a key.
#[derive(Debug, PartialEq, Eq)]
enum KeyAction {
    End,
    TogglePause,
}

/// Draws until the user ends it. Restores the terminal afterwards, also after a panic.
///
/// # Errors
/// If the terminal fails.
pub fn run(path: &Path, first: Reading, interval: Duration, workers: usize) -> io::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in
        [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP]
    {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let mut terminal = ratatui::try_init()?;
    let (mut before, mut content, mut is_paused) = (first, Err("reading ...".to_owned()), false);
    let result = loop {
        if let Err(error) = terminal.draw(|frame| draw(frame, &content, is_paused)) {
            break Err(error);
        }
        match wait(interval, &stop) {
            Ok(None) if is_paused => {}
            Ok(None) => content = read_changes(path, &mut before, workers),
            Ok(Some(KeyAction::TogglePause)) => is_paused = !is_paused,
            Ok(Some(KeyAction::End)) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    result
}

/// Returns the changes since the last reading, or the reason why there is no reading. The node may have been
/// restarted.
fn read_changes(path: &Path, before: &mut Reading, workers: usize) -> Result<Report, String> {
    let now = Reading::of(path).map_err(|error| error.to_string())?;
    let report = Report::between(before, &now, workers);
    *before = now;
    Ok(report)
}

/// Waits for a key with an action, and returns the action. Returns `None` at the end of the interval. A signal counts
/// as the key to end.
fn wait(interval: Duration, stop: &AtomicBool) -> io::Result<Option<KeyAction>> {
    let until = Instant::now() + interval;
    loop {
        let remaining = until.saturating_duration_since(Instant::now());
        // Relaxed: the flag guards no other data.
        if stop.load(Relaxed) {
            return Ok(Some(KeyAction::End));
        }
        if remaining.is_zero() {
            return Ok(None);
        }
        if event::poll(remaining.min(CHECK_INTERVAL))?
            && let Event::Key(key) = event::read()?
            && let Some(action) = action_of(key)
        {
            return Ok(Some(action));
        }
    }
}

/// Returns the action of a key, if it has one.
fn action_of(key: KeyEvent) -> Option<KeyAction> {
    match (key.kind, key.code) {
        (KeyEventKind::Release, _) => None,
        (_, KeyCode::Char('c')) if key.modifiers.contains(KeyModifiers::CONTROL) => {
            Some(KeyAction::End)
        }
        (_, KeyCode::Char('q') | KeyCode::Esc) => Some(KeyAction::End),
        (_, KeyCode::Char('p')) => Some(KeyAction::TogglePause),
        _ => None,
    }
}

/// Draws the report, or the reason why there is none.
fn draw(frame: &mut Frame<'_>, content: &Result<Report, String>, is_paused: bool) {
    let mut area = frame.area();
    match content {
        Ok(report) => {
            report.0.iter().for_each(|node| area = draw_node(frame, area, node, is_paused))
        }
        Err(reason) => frame.render_widget(Line::raw(reason.as_str()), area),
    }
}

/// Draws the tables of a node that fit, from the top. Returns the area below them.
fn draw_node(frame: &mut Frame<'_>, area: Rect, node: &NodeReport, is_paused: bool) -> Rect {
    // The rows, the column names and an empty line.
    let height = |section: &Section| Constraint::Length(section.rows.len() as u16 + 2);
    let heights = std::iter::once(Constraint::Length(1)).chain(node.sections.iter().map(height));
    let areas = Layout::vertical(heights.chain([Constraint::Fill(1)])).split(area);
    let pause_text = if is_paused { "  (paused; p continues)" } else { "" };
    let head = Line::raw(node.head.cells.join("  ") + pause_text).style(style(&node.head));
    frame.render_widget(head.style(style(&node.head).add_modifier(Modifier::BOLD)), areas[0]);
    for (section, &area) in node.sections.iter().zip(&areas[1..]) {
        draw_section(frame, area, section);
    }
    areas[areas.len() - 1]
}

/// Returns the style of a row.
fn style(row: &Row) -> Style {
    if row.is_bad { BAD } else { Style::new() }
}

/// Draws a table.
fn draw_section(frame: &mut Frame<'_>, area: Rect, section: &Section) {
    let widths = section.widths();
    let names: Vec<_> = section.columns.iter().map(|&name| name.to_owned()).collect();
    let row = |row: &Row| TableRow::new(aligned(&row.cells, &widths)).style(style(row));
    let constraints = widths.iter().map(|&width| Constraint::Length(width as u16));
    let table = Table::new(section.rows.iter().map(row), constraints)
        .header(TableRow::new(aligned(&names, &widths)).style(NAMES))
        .column_spacing(2);
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::top::report::tests::report;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    /// Draws on a terminal of this size.
    fn screen(width: u16, height: u16, content: &Result<Report, String>) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, content, false)).unwrap();
        terminal.backend().clone()
    }

    #[test]
    fn report_shows_faults_in_red() {
        let drawn = screen(120, 30, &Ok(report()));
        let text = drawn.to_string();
        for words in ["leaf 3", "core", "horus", "runt", "10.0.2.12"] {
            assert!(text.contains(words), "{words} is not in:\n{text}");
        }
        let buffer = drawn.buffer();
        let line = |y: u16| (0..120).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let colour = |words: &str| {
            let y = (0..30).find(|&y| line(y).starts_with(words)).unwrap();
            buffer[(0, y)].fg
        };
        assert_eq!((colour("runt"), colour("12 ")), (Color::Red, Color::Reset));
    }

    // promise: control.3
    #[test]
    fn terminal_of_any_size_is_drawn() {
        for (width, height) in [(1, 1), (20, 3), (40, 8), (300, 100)] {
            screen(width, height, &Ok(report()));
            screen(width, height, &Err("no state file".to_owned()));
        }
    }

    #[test]
    fn keys_have_their_documented_actions() {
        let key = |code| action_of(KeyEvent::new(code, KeyModifiers::NONE));
        assert_eq!(key(KeyCode::Char('q')), Some(KeyAction::End));
        assert_eq!(key(KeyCode::Esc), Some(KeyAction::End));
        assert_eq!(key(KeyCode::Char('p')), Some(KeyAction::TogglePause));
        assert_eq!((key(KeyCode::Char('c')), key(KeyCode::Enter)), (None, None));
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(action_of(control), Some(KeyAction::End));
    }
}
