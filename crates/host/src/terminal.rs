//! Text for a terminal of 80 columns.

/// The width that tables and sentences keep to, columns.
pub const WIDTH: usize = 80;

/// Appends `text` as lines of at most [`WIDTH`], broken between words; a longer word has a line to
/// itself.
pub fn write_wrapped(out: &mut String, text: &str) {
    write_hanging(out, "", 0, text.split_whitespace());
}

/// Writes words behind `first`, for words that may contain spaces; the following lines are indented
/// by `indent` columns.
pub fn write_hanging<W: AsRef<str>>(
    out: &mut String,
    first: &str,
    indent: usize,
    words: impl IntoIterator<Item = W>,
) {
    out.push_str(first);
    let mut column = first.chars().count();
    // Where the line's words begin.
    let mut begin = column;
    for word in words {
        let word = word.as_ref();
        let length = word.chars().count();
        if column > begin && column + 1 + length > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            (column, begin) = (indent, indent);
        } else if column > begin {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_fill_the_width() {
        let mut out = String::new();
        let (half, rest) = ("a".repeat(39), "b".repeat(40));
        write_wrapped(&mut out, &format!("{half}  {rest} c"));
        assert_eq!(out, format!("{half} {rest}\nc\n"));
    }

    #[test]
    fn hanging_lines_are_indented_within_the_width() {
        let mut out = String::new();
        let (half, rest) = ("a".repeat(40), "b".repeat(38));
        write_hanging(&mut out, "x: ", 3, [half.as_str(), &rest, "c"]);
        assert_eq!(out, format!("x: {half}\n   {rest} c\n"));
    }

    #[test]
    fn too_long_word_gets_its_own_line() {
        let mut out = String::new();
        let long = "ä".repeat(WIDTH + 1);
        write_wrapped(&mut out, &format!("a {long} b"));
        assert_eq!(out, format!("a\n{long}\nb\n"));
    }
}
