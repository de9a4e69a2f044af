export async function transcribeFile() {}
